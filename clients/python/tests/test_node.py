"""Tests against a node of Belfry."""

import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from wsgiref.simple_server import WSGIRequestHandler, make_server

import belfry
from support import SECRET, TOKEN, URL, client, in_state, needs_node, until

SOURCE = "/python"
FAR = datetime(2033, 12, 24, 17, tzinfo=timezone.utc)


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


class Callee:
    """A server that handles callbacks. runs has each call."""

    def __init__(self, test, handler, **options):
        self.runs = []

        def handle(run):
            self.runs.append(run)
            return handler(run)

        options = options or {"secrets": SECRET}
        server = make_server("127.0.0.1", 0, belfry.Receiver(handle, on_error=lambda error, run: None, **options), handler_class=Quiet)
        self.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        test.addCleanup(thread.join)
        test.addCleanup(server.server_close)
        test.addCleanup(server.shutdown)


@needs_node
class NodeTest(unittest.TestCase):
    def test_add_once(self):
        timer = dict(at=FAR, id="once", source=SOURCE, svc="py-add", group="g", maxattempts=3, data={"ö": [1, None]}, attributes={"customer": "17"})
        added = client.add(**timer)
        self.assertEqual((added["id"], added["due"], added["state"], added["duplicate"]), ("once", "2033-12-24T17:00:00.000Z", "pending", False))
        self.assertTrue(client.add(**timer)["duplicate"])
        by_name = client.get({"source": SOURCE, "id": "once"})
        self.assertEqual(by_name, client.get(added["timer"]))
        self.assertEqual(client.get(added["timer"], claim=True)["timer"], added["timer"])
        self.assertEqual((by_name["service"], by_name["group"], by_name["maxattempts"]), ("py-add", "g", 3))
        with self.assertRaises(belfry.ConflictError) as caught:
            client.add(**{**timer, "data": 2})
        self.assertEqual((caught.exception.code, caught.exception.status), ("conflict", 409))

    def test_idempotency_key(self):
        a, b = (client.add(in_="1h", source=SOURCE, svc="py-add", idempotency_key="schlüssel") for _ in range(2))
        self.assertEqual((a["timer"], a["id"], b["duplicate"]), (b["timer"], "schlüssel", True))
        with self.assertRaises(belfry.ConflictError) as caught:
            client.add(in_="2h", source=SOURCE, svc="py-add", idempotency_key="schlüssel")
        self.assertEqual(caught.exception.status, 422)

    def test_durations(self):
        before = datetime.now(timezone.utc)
        added = client.add(in_=timedelta(hours=1, milliseconds=500), svc="py-add")
        due = datetime.fromisoformat(added["due"].replace("Z", "+00:00"))
        self.assertGreater(due, before + timedelta(minutes=59))

    def test_mistakes(self):
        for code, pointer, fields in [
            ("invalid_attribute", "#/in", {"in_": "15"}),
            ("invalid_attribute", "#/attributes/timerx", {"in_": "15m", "attributes": {"timerx": "1"}}),
            ("invalid_attribute", "#/tz", {"cron": "0 3 * * *", "tz": "Berlin"}),
        ]:
            with self.subTest(pointer), self.assertRaises(belfry.InvalidError) as caught:
                client.add(**fields)
            self.assertEqual(caught.exception.pointer, pointer)
        with self.assertRaises(belfry.NotFoundError):
            client.get("0" * 26)
        with self.assertRaises(belfry.InvalidError) as caught:
            client.request("GET", "/v1/nothing")
        self.assertEqual(caught.exception.code, "no_route")
        with self.assertRaises(belfry.AccessError):
            belfry.Client(URL, token="wrong").get("0" * 26)

    def test_limit(self):
        client.request("PUT", "/v1/flows/adds:py-limited", body={"rate": "1/h", "burst": 1})
        client.add(in_="1h", svc="py-limited")
        with self.assertRaises(belfry.LimitedError) as caught:
            client.add(in_="1h", svc="py-limited")
        self.assertGreater(caught.exception.retry_after, 30)

    def test_batch(self):
        timers = [{"in": "1h", "id": f"batch-{n}", "source": SOURCE, "svc": "py-batch"} for n in range(500)]
        timers.append({"cron": "0 3 * * *", "tz": "Europe/Berlin", "limit": 3, "id": "batch-500", "source": SOURCE, "svc": "py-batch"})
        timers[1:2] = [{"in": "15", "id": "wrong"}, {"in": "1h", "attributes": {"timerx": "1"}}]
        results = client.add_batch(timers)
        self.assertEqual(len(results), 502)
        self.assertEqual((results[1].pointer, results[2].pointer), ("#/in", "#/attributes/timerx"))
        self.assertEqual(sum(isinstance(r, belfry.BelfryError) for r in results), 2)
        self.assertEqual(len(list(client.list(service="py-batch", state=["pending"], limit=200))), 500)
        schedules = list(client.list(service="py-batch", schedule=True))
        self.assertEqual([(s["id"], s["schedule"]["limit"]) for s in schedules], [("batch-500", 3)])
        page = client.list_page({"service": "py-batch", "limit": 1})
        self.assertEqual(page["from"], "record")
        self.assertTrue(page["cursor"])

    def test_search(self):
        added = client.add(in_="1h", id="found", source=SOURCE, svc="py-find", type="py.found")
        found = until("the search index has the timer", lambda: list(client.search(q="found", type="py.found", due_from=datetime.now(timezone.utc))))
        self.assertEqual([t["timer"] for t in found], [added["timer"]])
        page = client.search_page({"type": "py.found"})
        self.assertEqual((page["from"], len(page["timers"])), ("history", 1))

    def test_move_and_cancel(self):
        timer = client.add(in_="1h", svc="py-change")["timer"]
        moved = client.reschedule(timer, at=FAR, by="anna")
        self.assertEqual((moved["due"], moved["history"][0]["op"], moved["history"][0]["by"]), ("2033-12-24T17:00:00.000Z", "reschedule", "anna"))
        with self.assertRaises(belfry.ConflictError) as caught:
            client.reschedule(timer, in_="1h", if_match=moved["revision"] - 1)
        self.assertEqual(caught.exception.code, "precondition_failed")
        cancelled = client.cancel({"source": moved["source"], "id": moved["id"]}, if_match=moved["revision"])
        self.assertEqual(cancelled["state"], "cancelled")
        fired = client.add(in_="0s", svc="py-change")["timer"]
        in_state(fired, "success")
        with self.assertRaises(belfry.TooLateError) as caught:
            client.cancel(fired)
        self.assertEqual(caught.exception.code, "already_fired")
        self.assertTrue(client.why(fired)["answers"][0]["text"])

    def test_schedule(self):
        target = Callee(self, lambda run: f"run {run.run}")
        schedule = {"source": SOURCE, "id": "nightly"}
        fields = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "svc": "signed", "callback": target.url}
        client.add(**schedule, **fields)
        self.assertEqual(client.pause(schedule, note="stocktaking")["pause_note"], "stocktaking")
        self.assertEqual(client.resume(schedule, catchup="skip")["state"], "pending")
        client.trigger(schedule, idempotency_key="1")
        client.trigger(schedule, idempotency_key="1")
        run = until("the run has a result", lambda: [r for r in client.runs(schedule) if r.get("state") == "success"])[0]
        self.assertEqual((run["run"], run["trigger"], run["outcome"]["response"]), (1, "manual", "run 1"))
        self.assertEqual([(r.trigger, r.key, r.timer) for r in target.runs], [("manual", run["id"], client.get(schedule)["timer"])])
        updated = client.update(schedule, {**fields, "cron": "0 3 * * *"}, by="anna")
        self.assertEqual(updated["timer"]["schedule"]["cron"], "0 3 * * *")
        self.assertNotEqual(updated["before"][0], updated["after"][0])
        self.assertTrue(client.why(schedule, "2033-12-24")["answers"][0]["text"])

    def test_callbacks(self):
        for service, options, data in [
            ("signed", {"secrets": SECRET}, {"order": 17, "name": "Jürgen"}),
            ("signed-binary", {"secrets": SECRET, "binary": True}, {"order": 17, "name": "Jürgen"}),
            ("py-unsigned", {"unsigned": True}, {"order": 17, "name": "Jürgen"}),
            ("signed", {"secrets": SECRET}, b"\0\1\xff"),
            ("py-unsigned", {"unsigned": True}, b"\0\1\xff"),
        ]:
            with self.subTest(service, data=data):
                target = Callee(self, lambda run: {"attempt": run.attempt}, **options)
                added = client.add(in_="0s", svc=service, callback=target.url, subject='Köln "1" 100%', data=data, attributes={"customer": "Ä 17"})
                timer = added["timer"]
                done = in_state(timer, "success")
                (run,) = target.runs
                self.assertEqual((run.data, run.key, run.timer, run.run, run.attempt, run.missed, run.trigger), (data, f"{timer}.1", timer, 1, 1, 0, None))
                self.assertEqual((run.event["subject"], run.event["customer"], run.event["source"]), ('Köln "1" 100%', "Ä 17", "/http"))
                self.assertEqual(run.scheduled, datetime.fromisoformat(added["due"].replace("Z", "+00:00")))
                self.assertEqual((done["outcome"]["response"], done["last_attempts"][0]["status"]), ('{"attempt": 1}', 200))

    def test_not_now_and_an_error(self):
        answers = [belfry.NotNow(1, "busy"), KeyError("no")]

        def handler(run):
            if answers:
                raise answers.pop(0)
            return "done"

        target = Callee(self, handler)
        timer = client.add(in_="0s", svc="signed", callback=target.url, maxattempts=2, backoff="10ms")["timer"]
        done = in_state(timer, "success")
        self.assertEqual((len(target.runs), len({run.key for run in target.runs})), (3, 1))
        self.assertEqual(done["outcome"]["response"], "done")  # of two attempts, because "not now" is none

    def test_dead_letters(self):
        gone = [True]

        def handler(run):
            if gone:
                raise belfry.DeadLetterNow("there is no order 17")

        target = Callee(self, handler, unsigned=True)
        added = client.add(in_="0s", svc="py-dead", callback=target.url)
        letter = until("the dead letter", lambda: list(client.dead_letters(service="py-dead")))[0]
        self.assertEqual((letter["timer"], letter["id"], letter["attempts"], len(target.runs)), (added["timer"], added["id"], 1, 1))
        gone.clear()
        self.assertEqual(client.replay(timer=added["timer"], by="anna"), {"replayed": 1, "timers": [added["timer"]], "more": False})
        in_state(added["timer"], "success")
        client.add(in_="0s", svc="py-dead", callback="http://127.0.0.1:9/", maxattempts=1)
        other = until("the other dead letter", lambda: list(client.dead_letters(service="py-dead")))[0]
        self.assertEqual(client.discard(other["sequence"])["sequence"], other["sequence"])
        self.assertEqual(list(client.dead_letters(service="py-dead")), [])

    def test_stream(self):
        def add(id_):
            return client.add(in_="0s", id=id_, source=SOURCE, svc="py-stream", data={"n": 1})

        with ThreadPoolExecutor() as pool:
            for item in client.stream("py-stream", on_open=lambda _: pool.submit(add, "first")):
                break
        self.assertEqual((item.event["id"], item.event["event"]["data"]), ("first", {"n": 1}))
        in_state(add("second")["timer"], "success")
        stop = threading.Event()
        ids = []
        for item in client.stream("py-stream", last_event_id=item.last_event_id, stop=stop):
            ids.append(item.event["id"])
            break
        self.assertEqual(ids, ["second"])
        stop.set()
        self.assertEqual(list(client.stream("py-stream", stop=stop)), [])
        with self.assertRaises(belfry.BelfryError):
            next(client.stream(""))
        with self.assertRaises(belfry.AccessError):
            next(belfry.Client(URL, token=(TOKEN or "") + "x").stream("py-stream"))


if __name__ == "__main__":
    unittest.main()
