import os
from wsgiref.simple_server import make_server

import belfry
from expire import expire

callbacks = belfry.Receiver(expire, secrets=os.environ["BELFRY_SECRET"])
server = make_server("127.0.0.1", int(os.environ.get("PORT", "3000")), callbacks)
print(f"listening on port {server.server_port}", flush=True)
server.serve_forever()
