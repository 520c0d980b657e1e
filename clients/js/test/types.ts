// Checked by tsc, not run: the modules have the types that index.d.ts declares, and a program of a user compiles.
import type * as declared from "../index.d.ts";
import * as actual from "../src/index.js";

export const modules: typeof declared = actual;

export async function user(client: declared.Client): Promise<string[]> {
  const added = await client.add({ in: "15m", svc: "orders", data: { order: 17 } }, { idempotencyKey: "order-17" });
  const results = await client.addBatch([{ at: new Date(), id: "1" }]);
  const ids = results.map((r) => ("timer" in r ? r.timer : r.code));
  for await (const timer of client.list({ state: ["pending", "paused"], schedule: false })) {
    if (timer.schedule?.last?.trigger === "manual") ids.push(timer.timer);
  }
  await client.reschedule({ source: "/shop", id: "order-17" }, { in: "1h" }, { ifMatch: (await client.get(added.timer)).revision });
  // @ts-expect-error: an unknown field
  await client.add({ inn: "15m" });
  // @ts-expect-error: either in or at
  await client.reschedule(added.timer, {});
  return ids;
}

export const handler: declared.Handler<{ order: number }> = async (run) => {
  if (run.data.order === 0) throw new actual.NotNow(60);
  return { paid: run.data.order };
};
