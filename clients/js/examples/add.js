import { Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });

const added = await belfry.add({
  in: "15m",
  id: "order-17",
  source: "/shop",
  type: "order.timeout",
  svc: "orders",
  callback: "https://shop.example/expired",
  data: { order: 17 },
});
console.log(`timer ${added.timer} is due at ${added.due}`);
