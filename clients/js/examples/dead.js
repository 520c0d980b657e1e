import { Client } from "@belfryio/client";

const belfry = new Client({ url: process.env.BELFRY_URL, token: process.env.BELFRY_HTTP_TOKEN });

for await (const letter of belfry.deadLetters({ service: "orders" })) {
  console.log(`${letter.id}: ${letter.error_data} after ${letter.attempts} attempts`);
}
const { replayed } = await belfry.replay({ service: "orders", limit: 100 }, { by: "anna" });
console.log(`${replayed} replayed`);
