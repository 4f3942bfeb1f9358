"""The commands of ``online-sao``, one file a subject. Own flags, what is printed and exit codes; the work is done elsewhere. cli.py lists them."""
