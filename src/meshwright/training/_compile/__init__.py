"""Options of the compiler, and compiled programs that are kept for the next start."""
