import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import belfry
from expire import expire

callbacks = belfry.Receiver(expire, secrets=os.environ["BELFRY_SECRET"])


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = callbacks.answer(self.headers, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "3000"))), Handler)
print(f"listening on port {server.server_port}", flush=True)
server.serve_forever()
