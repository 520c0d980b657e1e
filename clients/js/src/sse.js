/**
 * A message of Server-Sent Events. id is that of its own line, or undefined.
 * @typedef {{ id?: string, event: string, data: string }} Message
 */

/**
 * Yields the messages of an answer with Server-Sent Events, also those with an id and no data. alive is called for all that arrives.
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} alive
 * @returns {AsyncGenerator<Message, void, undefined>}
 */
export async function* messages(body, alive) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  /** @type {Message} */
  let message = { event: "message", data: "" };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (message.id !== undefined || message.data !== "") yield message;
        message = { event: "message", data: "" };
        continue;
      }
      const colon = line.indexOf(":");
      if (colon === 0) continue; // a comment
      const name = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (name === "id") message.id = text;
      if (name === "event") message.event = text;
      if (name === "data") message.data += (message.data && "\n") + text;
    }
  }
}
