// The shortest use, and a stream, with the package as it is installed.
import { Client } from "toolfleet";

const client = await Client.fromEmbedded();
try {
  const future = await client.submit("bash", { command: "sleep 2; echo hi" }); // output is live: who comes late misses it
  let text = "";
  for await (const piece of future.output()) text += piece.text;
  const result = await client.call("bash", { command: "echo hi" });
  if (result.text !== "hi\n" || text !== "hi\n") throw new Error(`got ${JSON.stringify([result.text, text])}`);
  console.log("ok");
} finally {
  await client.close();
}
