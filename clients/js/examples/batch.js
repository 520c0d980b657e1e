import { BelfryError, Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });

const reminders = [1, 2, 3].map((n) => ({ in: `${n}h`, id: `reminder-${n}`, source: "/shop", svc: "reminders" }));
const results = await belfry.addBatch(reminders);
const failed = results.filter((result) => result instanceof BelfryError);
for (const error of failed) console.error(`${error.code}: ${error.message}`);
console.log(`${results.length - failed.length} stored`);
