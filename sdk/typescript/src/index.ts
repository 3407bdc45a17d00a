export { Client } from "./client.js";
export type { EmbeddedOptions } from "./embedded.js";
export { CallError, ToolfleetError } from "./errors.js";
export type { TransportOptions } from "./http.js";
export { type EventOptions, Future, Session, Turn, type WaitOptions } from "./session.js";
export type * from "./types.js";
