import { Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });
const nightly = { source: "/reports", id: "nightly" };

await belfry.add({ ...nightly, cron: "30 2 * * *", tz: "Europe/Berlin", svc: "reports" });
await belfry.pause(nightly, { note: "stocktaking" });
await belfry.resume(nightly, { catchup: "one" });
await belfry.trigger(nightly);
for await (const run of belfry.runs(nightly)) console.log(run.run, run.scheduled, run.state);
