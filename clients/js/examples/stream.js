import { Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });

for await (const { event } of belfry.stream("orders", { onOpen: () => console.log("open") })) {
  console.log(`${event.id} fired ${event.lateness_ms} ms late`);
}
