import { fetchHandler } from "@belfryio/client";

export default {
  fetch: fetchHandler(async (run) => ({ expired: run.data.order }), { secrets: process.env.BELFRY_SECRET }),
};
