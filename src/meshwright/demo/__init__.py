"""Two small real runs that need no download: `meshwright demo digits` and `meshwright demo text`.

Each is written as a user would write it, and is meant to be copied and changed.
"""
