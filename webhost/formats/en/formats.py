"""Dates that sort, in UTC and saying so; the names are Django's (FORMAT_MODULE_PATH)."""

DATE_FORMAT = SHORT_DATE_FORMAT = "Y-m-d"
DATETIME_FORMAT = SHORT_DATETIME_FORMAT = r"Y-m-d H:i \U\T\C"
TIME_FORMAT = "H:i"
