// Sorts a table by the column whose heading is pressed, and the other way round when it is pressed again.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  const sortBy = (head) => {
    const opposite = { ascending: "descending", descending: "ascending" };
    const order = opposite[head.getAttribute("aria-sort")] ?? head.dataset.first ?? "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const keyOf = (row) => row.cells[head.cellIndex].dataset.key;
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [keyOf(a), keyOf(b)];
      return x && y ? sign * compare(x, y) : !x - !y; // rows without a value stand last in both orders
    });
    body.append(...rows);
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
  };
  for (const head of heads) head.querySelector("button").addEventListener("click", () => sortBy(head));
}
