"""Exit code 0 where the service in this container answers well: `healthcheck.py [/healthz]`. Standard library only: it runs every few seconds."""

import http.client
import os
import sys

path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
connection = http.client.HTTPConnection("127.0.0.1", int(os.environ.get("ONLINE_SAO_SERVER__PORT", "8000")), timeout=4)
try:
    connection.request("GET", path)
    answer = connection.getresponse()
except (OSError, http.client.HTTPException) as error:
    sys.exit(f"no answer: {error}")
if answer.status != 200:
    sys.exit(f"{path} answered {answer.status}: {answer.read(300).decode(errors='replace')}")
