import type { components, paths } from "./openapi.js";

type Schemas = components["schemas"];

/** A page of the log of calls, and what it has of one. */
export type CallLog = Schemas["CallLog"];
export type LoggedCall = Schemas["LoggedCall"];
export type CallRates = Schemas["CallRates"];
export type CallRequest = Schemas["CallRequest"];
export type CallResult = Schemas["CallResult"];
export type CallState = Schemas["CallState"];
export type Event = Schemas["Event"];
export type FileInfo = Schemas["File"];
export type Limit = Schemas["Limit"];
export type NewSchedule = Schemas["NewSchedule"];
export type NewToken = Schemas["NewToken"];
export type NewWebhook = Schemas["WebhookRequest"];
export type OutputPiece = Schemas["OutputPiece"];
export type Place = Schemas["Place"];
export type Problem = Schemas["Problem"];
export type Question = Schemas["Question"];
export type Schedule = Schemas["Schedule"];
export type SessionInfo = Schemas["Session"];
/** Where the time of a turn went. */
export type TurnTrace = Schemas["Trace"];
/** What a search has found. */
export type Found = Schemas["Found"];
export type ToolInfo = Schemas["ToolInfo"];
export type TurnRequest = Schemas["TurnRequest"];
export type Worker = Schemas["Worker"];

/** Which calls of the log are wanted. */
export type CallFilter = NonNullable<paths["/v1/calls"]["get"]["parameters"]["query"]>;

/** Arguments of a tool, as its schema says. */
export type Arguments = Record<string, unknown>;

/** How a call runs: all that a call has but the tool and its arguments. */
export type CallOptions = Omit<CallRequest, "tool" | "arguments" | "handler" | "input"> & {
  /** Your own id of the call: a call that is sent again with it does not run twice. */
  key?: string;
  /** Ends the wait; the call itself runs on, unless it is cancelled. */
  signal?: AbortSignal;
};

/** A turn: what the person says, and how the model answers. */
export type TurnOptions = Omit<TurnRequest, "prompt"> & { key?: string; signal?: AbortSignal };

/** A message of the stream of a session. Stored events have an id, from which a stream continues. */
export type SessionMessage =
  | { kind: "event"; id?: string; event: Event }
  | { kind: "output"; output: OutputPiece }
  | { kind: "lost"; reason: string };
