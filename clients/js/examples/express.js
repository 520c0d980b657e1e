import express from "express";
import { DeadLetterNow, NotNow, middleware } from "@belfryio/client";

const orders = new Map([[17, { paid: false }]]);
const done = new Set(); // in a real service a table, with the key written in the transaction that expires the order

async function expire(run) {
  if (done.has(run.key)) return "done before";
  const order = orders.get(run.data.order);
  if (order === undefined) throw new DeadLetterNow(`there is no order ${run.data.order}`);
  if (order.locked) throw new NotNow(30, "the order is being changed");
  order.expired = !order.paid;
  done.add(run.key);
  return { expired: order.expired };
}

const app = express();
app.post("/expired", middleware(expire, { secrets: process.env.BELFRY_SECRET }));
app.use(express.json()); // after the callbacks: the signature is that of the bytes
const server = app.listen(process.env.PORT ?? 3000, () => console.log(`listening on port ${server.address().port}`));
