import { NotNow, parse } from "@belfryio/client";
import { connect, headers } from "@nats-io/transport-node";

const orders = new Map([[17, { paid: false }], [19, { paid: false, locked: true }]]);
const done = new Set(); // in a real service a table, with the key written in the transaction that expires the order

async function expire(run) {
  if (done.has(run.key)) return "done before";
  const order = orders.get(run.data.order);
  if (order === undefined) throw new Error(`there is no order ${run.data.order}`);
  if (order.locked) throw new NotNow(30, "the order is being changed");
  order.expired = !order.paid;
  done.add(run.key);
  return JSON.stringify({ expired: order.expired });
}

async function answer(message) {
  try {
    message.respond(await expire(parse(Object.fromEntries(message.headers), message.data)));
  } catch (error) {
    const failed = headers();
    failed.set("Nats-Service-Error", error.message.replaceAll(/\s+/g, " "));
    failed.set("Nats-Service-Error-Code", "500");
    if (error instanceof NotNow) failed.set("Retry-After", String(Math.ceil(error.seconds)));
    message.respond("", { headers: failed });
  }
}

const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222", maxReconnectAttempts: -1 });
const messages = nc.subscribe("callbacks.orders.expire", { queue: "orders" });
await nc.flush();
console.log("serving callbacks.orders.expire");
process.once("SIGTERM", () => nc.drain()); // take no more, answer the callbacks that have arrived, and end
for await (const message of messages) await answer(message);
