"""The report of studies: a folder with figures, tables, claims and a page."""
