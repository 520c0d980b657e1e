import { Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });

for await (const timer of belfry.list({ service: "orders", state: ["pending", "retrying"] })) console.log(timer.id, timer.due);
for await (const timer of belfry.search({ q: "order-17" })) console.log(timer.id, timer.state);
