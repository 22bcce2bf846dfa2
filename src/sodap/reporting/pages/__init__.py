"""HTML pages: the sections of a report, their templates and the writing of the files."""
