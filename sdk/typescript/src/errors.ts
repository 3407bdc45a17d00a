import type { CallResult, Problem } from "./types.js";

/**
 * What the server refused or could not do. `code` is one that programs can compare, such as
 * `not_found`, `invalid`, `forbidden`, `busy` or `unreachable`: see docs/http.md.
 */
export class ToolfleetError extends Error {
  override readonly name: string = "ToolfleetError";

  constructor(
    readonly code: string,
    message: string,
    /** Status of the answer; 0 without one. */
    readonly status = 0,
    /** What is wrong with which part of the request. */
    readonly errors: NonNullable<Problem["errors"]> = [],
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A call that ended with another status than `ok`. */
export class CallError extends ToolfleetError {
  override readonly name = "CallError";

  constructor(readonly result: CallResult) {
    super(result.error?.code ?? result.status, result.error?.message ?? `the call ended ${result.status}`);
  }
}

/** The error of an answer which has a problem as its body. */
export async function errorOf(response: Response): Promise<ToolfleetError> {
  const text = await response.text().catch(() => "");
  try {
    const problem = JSON.parse(text) as Partial<Problem>;
    if (typeof problem.code === "string") {
      return ofProblem(problem as Problem);
    }
  } catch {
    // A proxy answers with a body of its own.
  }
  const code = response.status >= 500 ? "unreachable" : "internal";
  return new ToolfleetError(code, `the server answered ${response.status}: ${text.slice(0, 200)}`, response.status);
}

/** The error that a problem describes. */
export function ofProblem(problem: Problem): ToolfleetError {
  const more = (problem.errors ?? []).map((e) => `${e.location ?? ""}: ${e.message ?? ""}`).join("; ");
  return new ToolfleetError(problem.code, problem.detail + (more ? ` (${more})` : ""), problem.status, problem.errors ?? []);
}
