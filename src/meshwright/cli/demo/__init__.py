"""Two small real experiments that need no download: `meshwright demo digits` and `meshwright demo text`.

Each is written as a user would write it. Copy and change them.
"""
