// Package telemetry makes one trace of a turn, across processes, and the metrics of each process.
//
//	coordinator                                              worker
//	run
//	└─ invoke_agent
//	   ├─ chat {model}
//	   └─ dispatch {tool}
//	      └─ publish ────────────────traceparent header────► process
//	                                                         └─ execute_tool {tool}
//	                                                            └─ sandbox exec
//
// The root is named after what the user typed: run, chat (one for each turn), call or submit. With
// submit the turn is a call, too: submit, dispatch turn_run, publish, and, in the coordinator that
// runs it, process, invoke_agent.
//
// [Setup] installs exporters when, and only when, the standard OTEL_* variables ask for them.
// Without them nothing is installed: spans and metrics cost next to nothing, nobody is connected to
// and nothing is logged; the trace context of a caller still travels through, so that a chain does
// not break at a silent process.
//
// [Inject] and [Extract] carry the context in NATS headers under the lower-case names of W3C Trace
// Context, because NATS headers are case-sensitive. The names of spans, metrics and attributes
// stand in this package.
//
// Metrics come in groups, one for each part of the fleet that has some: [HolderMetrics],
// [WorkerMetrics], [CallMetrics], [TurnMetrics] and [ModelMetrics]. Attributes are pools, tools,
// models, statuses, codes and the like: never lanes, sessions, calls or what a model wrote.
//
// Telemetry never decides anything and never fails a call: an exporter that cannot reach its
// backend costs one warning a minute. Standard output is never written to; it belongs to the
// program.
package telemetry
