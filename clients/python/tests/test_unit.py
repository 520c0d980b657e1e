"""Tests that need no node of Belfry."""

import base64
import hashlib
import hmac
import http.server
import io
import json
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone

import belfry
from belfry._events import event_of, field_pointer, sendable
from belfry._sse import messages

# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SIGNED = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "Webhook-Timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
PAYLOAD = b'{"test": 2432232314}'
NOW = 1614265330.0


class VerifyTest(unittest.TestCase):
    def test_one_of_several_secrets(self):
        belfry.verify(SECRET, SIGNED, PAYLOAD, now=NOW)
        other = "whsec_" + base64.b64encode(b"x" * 24).decode()
        belfry.verify([other, SECRET], SIGNED.items(), PAYLOAD, now=NOW)
        several = {**SIGNED, "webhook-signature": "v1,AAAA v2,x v1,??? " + SIGNED["webhook-signature"]}
        belfry.verify(SECRET, several, PAYLOAD, now=NOW)

    def test_refusals(self):
        for name, headers, body, now in [
            ("another body", SIGNED, PAYLOAD + b" ", NOW),
            ("another id", {**SIGNED, "webhook-id": "other"}, PAYLOAD, NOW),
            ("another time", {**SIGNED, "Webhook-Timestamp": "1614265331"}, PAYLOAD, NOW),
            ("no signature", {}, PAYLOAD, NOW),
            ("no valid version", {**SIGNED, "webhook-signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}, PAYLOAD, NOW),
            ("a signature that is not ASCII", {**SIGNED, "webhook-signature": "v1,ö"}, PAYLOAD, NOW),
            ("an old signature", SIGNED, PAYLOAD, NOW + 301),
            ("a signature of the future", SIGNED, PAYLOAD, NOW - 301),
            ("a time that is no number", {**SIGNED, "Webhook-Timestamp": "-1"}, PAYLOAD, NOW),
        ]:
            with self.subTest(name), self.assertRaises(belfry.SignatureError):
                belfry.verify(SECRET, headers, body, now=now)

    def test_secrets(self):
        for wrong in ["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_short", "whsec_!!!!"]:
            with self.subTest(wrong), self.assertRaises(ValueError) as caught:
                belfry.Receiver(lambda run: None, secrets=wrong)
            self.assertNotIn(wrong, str(caught.exception))
        for nothing in (None, [], ""):
            with self.assertRaises(ValueError):
                belfry.Receiver(lambda run: None, secrets=nothing)


ATTRIBUTES = {
    "specversion": "1.0", "id": "order-17", "source": "/shop", "type": "order.timeout", "timerscheduled": "2033-12-24T17:00:00.000Z",
    "timerfired": "2033-12-24T17:00:00.002Z", "timerrun": "3", "timerattempt": "2", "timermissed": "4", "timertrigger": "backfill",
}  # fmt: skip
BINARY = {**{"Ce-" + name: value for name, value in ATTRIBUTES.items()}, "Idempotency-Key": "5ksvb40a32nafljsnlhqgvue5s.3"}
STRUCTURED = {"idempotency-key": "t.3", "content-type": "application/cloudevents+json; charset=utf-8"}


class ParseTest(unittest.TestCase):
    def test_binary(self):
        run = belfry.parse({**BINARY, "Ce-subject": "K%C3%B6ln%20%22", "Content-Type": "application/json; charset=utf-8"}, b'{"order":17}')
        want = belfry.Run(
            key="5ksvb40a32nafljsnlhqgvue5s.3", timer="5ksvb40a32nafljsnlhqgvue5s", run=3, attempt=2,
            scheduled=datetime(2033, 12, 24, 17, tzinfo=timezone.utc), fired=datetime(2033, 12, 24, 17, 0, 0, 2000, timezone.utc), missed=4,
            trigger="backfill", event={**ATTRIBUTES, "subject": 'Köln "', "datacontenttype": "application/json; charset=utf-8"}, data={"order": 17},
        )  # fmt: skip
        self.assertEqual(run, want)

    def test_structured(self):
        run = belfry.parse(STRUCTURED, json.dumps({**ATTRIBUTES, "data": {"order": 17}}).encode())
        self.assertEqual((run.data, run.event, run.attempt), ({"order": 17}, ATTRIBUTES, 2))
        run = belfry.parse(STRUCTURED, json.dumps({**ATTRIBUTES, "datacontenttype": "image/png", "data_base64": "AQID"}).encode())
        self.assertEqual(run.data, b"\1\2\3")

    def test_data(self):
        self.assertEqual(belfry.parse({**BINARY, "Content-Type": "text/plain"}, "ö".encode()).data, "ö")
        self.assertEqual(belfry.parse({**BINARY, "Content-Type": "image/png"}, b"\1").data, b"\1")
        self.assertIsNone(belfry.parse(BINARY, b"").data)

    def test_refusals(self):
        for name, headers, body in [
            ("an event without the header of Belfry", {**BINARY, "Idempotency-Key": ""}, b""),
            ("no event", {"Idempotency-Key": "t.1"}, b"{}"),
            ("broken JSON", STRUCTURED, b"{"),
            ("data that is not of its type", {**BINARY, "Content-Type": "application/json"}, b"{"),
            ("no times", {**BINARY, "Ce-timerfired": ""}, b""),
        ]:
            with self.subTest(name), self.assertRaises(ValueError):
                belfry.parse(headers, body)


def signature(id_, at, body):
    key = base64.b64decode(SECRET[len("whsec_") :])
    return "v1," + base64.b64encode(hmac.new(key, f"{id_}.{at}.".encode() + body, hashlib.sha256).digest()).decode()


class ReceiverTest(unittest.TestCase):
    def call(self, handler, headers=BINARY, body=b"", method="POST", **options):
        self.errors = []
        options.setdefault("unsigned", True)
        return belfry.Receiver(handler, on_error=lambda error, run: self.errors.append(error), **options).answer(headers, body, method)

    def raising(self, error):
        def handler(run):
            raise error

        return handler

    def test_answers(self):
        self.assertEqual(self.call(lambda run: None).status, 204)
        answer = self.call(lambda run: {"run": run.run})
        self.assertEqual((answer.status, answer.body, answer.headers["Content-Type"]), (200, b'{"run": 3}', "application/json"))
        answer = self.call(self.raising(belfry.NotNow(1.2, "busy")))
        self.assertEqual((answer.status, answer.body, answer.headers["Retry-After"], self.errors), (503, b"busy", "2", []))
        self.assertEqual(self.call(self.raising(belfry.DeadLetterNow("gone"))).status, 410)
        answer = self.call(self.raising(KeyError("no")))
        self.assertEqual((answer.status, answer.body, len(self.errors)), (500, b"KeyError: 'no'", 1))

    def test_refusals(self):
        never = self.raising(AssertionError("the handler was called"))
        self.assertEqual(self.call(never, secrets=SECRET).status, 401)
        self.assertEqual(self.call(never, {}, b"{}").status, 400)
        self.assertEqual(self.call(never, {}, b"", "GET").status, 405)
        self.assertEqual(self.call(never, BINARY, b"x" * 11, max_body=10).status, 413)

    def test_binary_mode_with_a_signature(self):
        at = str(int(time.time()))
        headers = {**BINARY, "webhook-id": "t.1", "webhook-timestamp": at, "webhook-signature": signature("t.1", at, b"hello"), "Content-Type": "text/plain"}
        self.assertEqual(self.call(lambda run: run.key, headers, b"hello", secrets=SECRET).status, 401)
        answer = self.call(lambda run: run.key, headers, b"hello", secrets=SECRET, binary=True)
        self.assertEqual((answer.status, answer.body), (200, b"t.1"))

    def test_handshake(self):
        def ask(*origins):
            return self.call(lambda run: None, {"WebHook-Request-Origin": "belfry.example.com"}, b"", "OPTIONS", origins=origins)

        self.assertEqual(ask().status, 405)
        self.assertEqual(ask("other.example").status, 400)
        answer = ask("other.example", "Belfry.example.com")
        self.assertEqual((answer.status, answer.headers["WebHook-Allowed-Origin"]), (200, "belfry.example.com"))

    def test_wsgi(self):
        receiver = belfry.Receiver(lambda run: run.data + run.event["subject"], unsigned=True)
        environ = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in {**BINARY, "Ce-subject": "%C3%B6"}.items()}
        environ.update(REQUEST_METHOD="POST", CONTENT_TYPE="text/plain", CONTENT_LENGTH="5")
        environ["wsgi.input"] = io.BytesIO(b"hello and what follows")
        started = []
        body = receiver(environ, lambda status, headers: started.append(status))
        self.assertEqual((body, started), (["helloö".encode()], ["200 OK"]))

    def test_an_error_is_logged(self):
        with self.assertLogs("belfry", "ERROR") as logged:
            belfry.Receiver(self.raising(KeyError("no")), unsigned=True).answer(BINARY, b"")
        self.assertIn("5ksvb40a32nafljsnlhqgvue5s.3", logged.output[0])


class Server:
    """A server that gives the answers in turn, and then the last one again."""

    def __init__(self, test, *answers, handler=None):
        self.requests = []
        requests = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                answer = answers[min(len(requests), len(answers) - 1)]
                requests.append((self.command, self.path, self.headers, body))
                if answer == "drop":
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                self.send_header("Content-Type", "application/json" if status < 300 else "application/problem+json")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_GET = do_POST = do_DELETE = handle_one

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler or Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        test.addCleanup(thread.join)
        test.addCleanup(self.server.server_close)
        test.addCleanup(self.server.shutdown)


BUSY = (503, {"Retry-After": "0"}, {"status": 503, "code": "unavailable", "detail": "busy"})
FINE = (200, {}, {"timer": "t"})


class RequestTest(unittest.TestCase):
    def test_repeated(self):
        limited = (429, {"Retry-After": "0"}, {"status": 429, "code": "limited", "detail": "slow"})
        s = Server(self, BUSY, limited, "drop", FINE)
        added = belfry.Client(s.url + "/", token=lambda: "secret").add(in_=timedelta(seconds=1.5), idempotency_key="ö")
        self.assertEqual(added["timer"], "t")
        self.assertEqual(len(s.requests), 4)
        self.assertEqual(s.requests[3][2]["Authorization"], "Bearer secret")
        self.assertEqual(s.requests[3][2]["Idempotency-Key"], "ö".encode().decode("latin-1"))
        self.assertEqual(json.loads(s.requests[3][3]), {"in": "PT1.500000S"})

    def test_bounds(self):
        s = Server(self, BUSY)
        with self.assertRaises(belfry.UnavailableError) as caught:
            belfry.Client(s.url, retries=2).get("t")
        self.assertEqual((len(s.requests), caught.exception.retry_after, caught.exception.code), (3, 0, "unavailable"))
        long = Server(self, (503, {"Retry-After": "31"}, BUSY[2]))
        with self.assertRaises(belfry.UnavailableError) as caught:
            belfry.Client(long.url).get("t")
        self.assertEqual((len(long.requests), caught.exception.retry_after), (1, 31))

    def test_if_match(self):
        s = Server(self, BUSY)
        with self.assertRaises(belfry.UnavailableError):
            belfry.Client(s.url).cancel("t", if_match=7)
        self.assertEqual((len(s.requests), s.requests[0][2]["If-Match"]), (1, '"7"'))

    def test_no_answer(self):
        s = Server(self, "drop")
        with self.assertRaisesRegex(belfry.UnavailableError, "127.0.0.1: no answer"):
            belfry.Client(s.url, retries=0).get("t")

    def test_time_limit(self):
        with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as silent:
            with self.assertRaisesRegex(belfry.UnavailableError, "timed out"):
                belfry.Client(f"http://127.0.0.1:{silent.server_port}", retries=0, timeout=0.02).get("t")

    def test_redirect(self):
        s = Server(self, (302, {"Location": "/elsewhere"}, {}))
        with self.assertRaises(belfry.BelfryError) as caught:
            belfry.Client(s.url).get("t")
        self.assertEqual((caught.exception.status, len(s.requests)), (302, 1))

    def test_empty_timer_id(self):
        with self.assertRaises(ValueError):
            belfry.Client().cancel("")

    def test_times(self):
        with self.assertRaises(ValueError):
            sendable({"at": datetime(2033, 12, 24)})
        berlin = timezone(timedelta(hours=1))
        fields = {"at": datetime(2033, 12, 24, 18, tzinfo=berlin), "every": timedelta(days=1), "data": b"\1", "group": None}
        want = {"at": "2033-12-24T17:00:00Z", "every": "PT86400.000000S", "data_base64": "AQ==", "datacontenttype": "application/octet-stream"}
        self.assertEqual(sendable(fields), want)


class BatchTest(unittest.TestCase):
    def test_only_what_may_be_stored_later_is_repeated(self):
        def problem(status, code, **more):
            return {"status": status, "code": code, "detail": code, **more}

        results = [{"status": 201, "timer": "a"}, problem(503, "unavailable"), problem(422, "invalid_attribute", pointer="#/timerafter")]
        s = Server(
            self,
            (503, {"Retry-After": "0"}, {**problem(503, "unavailable"), "results": results}),
            (200, {}, {"results": [{"status": 201, "timer": "b"}]}),
        )
        a, b, c = belfry.Client(s.url).add_batch([{"in": "1s"}, {"in": "2s"}, {"in": "x"}])
        self.assertEqual((a["timer"], b["timer"], c.code, c.pointer), ("a", "b", "invalid_attribute", "#/in"))
        self.assertIsInstance(c, belfry.InvalidError)
        self.assertEqual([len(json.loads(r[3])) for r in s.requests], [3, 1])

    def test_verdicts_are_kept(self):
        limited = {"status": 429, "code": "limited", "detail": "slow"}
        s = Server(self, (429, {"Retry-After": "0"}, {**limited, "results": [{"status": 201, "timer": "a"}, limited]}))
        a, b = belfry.Client(s.url, retries=0).add_batch([{"in": "1s"}, {"in": "1s"}])
        self.assertEqual(a["timer"], "a")
        self.assertIsInstance(b, belfry.LimitedError)

    def test_attributes(self):
        event = event_of({"in": "1s", "svc": "orders", "limit": 3, "data": b"\1\2\3", "attributes": {"customer": "17"}})
        want = {
            "specversion": "1.0", "id": event["id"], "source": "/http", "type": "belfry.timer", "timerafter": "1s", "timersvc": "orders",
            "timerlimit": "3", "datacontenttype": "application/octet-stream", "data_base64": "AQID", "customer": "17",
        }  # fmt: skip
        self.assertEqual(event, want)
        with self.assertRaises(belfry.InvalidError) as caught:
            event_of({"inn": "1s"})
        self.assertEqual(caught.exception.pointer, "#/inn")
        for name in ("id", "specversion", "timersvc", "timerafter"):
            with self.assertRaises(belfry.InvalidError) as caught:
                event_of({"in": "1s", "attributes": {name: "1"}})
            self.assertEqual(caught.exception.pointer, f"#/attributes/{name}")
        self.assertEqual([field_pointer(p) for p in ("#/timersvc", "#/customer", "#/source", None)], ["#/svc", "#/attributes/customer", "#/source", None])


class StreamTest(unittest.TestCase):
    def test_goes_on_after_the_last_event(self):
        def fired(id_):
            return f'id: {id_}\nevent: fired\ndata: {{"id":"event-{id_}"}}\n\n'

        texts = ["id: 4\n\n" + fired(5), "id: 5\n\n", "id: 5\n\n" + fired(6) + fired(7)]
        asked, opened, ids = [], [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = texts[len(asked)] if len(asked) < len(texts) else None
                asked.append(self.headers["Last-Event-ID"])
                self.send_response(200 if text else 403)
                self.send_header("Content-Type", "text/event-stream" if text else "application/problem+json")
                self.end_headers()
                self.wfile.write((text or '{"code":"forbidden"}').encode())

            def log_message(self, *args):
                pass

        s = Server(self, handler=Handler)
        with self.assertRaises(belfry.AccessError):
            for item in belfry.Client(s.url).stream("s", on_open=opened.append):
                ids.append((item.last_event_id, item.event["id"]))
        self.assertEqual(ids, [("5", "event-5"), ("6", "event-6"), ("7", "event-7")])
        self.assertEqual((asked, opened), ([None, "5", "5", "7"], ["4", "5", "5"]))


class MessagesTest(unittest.TestCase):
    def test_messages(self):
        text = ':\n\nid: 7\n\nid: 8\r\nevent: fired\r\ndata: {"a":\r\ndata: "ö"}\r\n\r\n: end\n'
        found = [m for m in messages(io.BytesIO(text.encode())) if m.id]
        self.assertEqual(found, [("7", "message", ""), ("8", "fired", '{"a":\n"ö"}')])


if __name__ == "__main__":
    unittest.main()
