import { Client, TooLateError } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });
const order = { source: "/shop", id: "order-17" };

await belfry.reschedule(order, { in: "30m" }, { by: "checkout" });
try {
  await belfry.cancel(order, { by: "checkout" });
  console.log("paid in time");
} catch (error) {
  if (!(error instanceof TooLateError)) throw error;
  console.log("too late: the order has expired");
}
