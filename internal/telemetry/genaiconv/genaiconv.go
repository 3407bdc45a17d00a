// Package genaiconv has the names of OpenTelemetry's semantic conventions for generative AI and MCP
// that spans and metrics use, in the version of [Version]. Go's semconv package does not have them.
package genaiconv

import (
	"os"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
)

// Version is that of open-telemetry/semantic-conventions-genai. Its names are in development.
const Version = "0.1.0"

// Attributes of models, agents and tools.
const (
	Operation             = attribute.Key("gen_ai.operation.name")
	Provider              = attribute.Key("gen_ai.provider.name")
	AgentName             = attribute.Key("gen_ai.agent.name")             // of a sub-agent
	ConversationID        = attribute.Key("gen_ai.conversation.id")        // the session id
	ConversationCompacted = attribute.Key("gen_ai.conversation.compacted") // a summary stands for a part
	RequestModel          = attribute.Key("gen_ai.request.model")
	ResponseModel         = attribute.Key("gen_ai.response.model")
	ResponseID            = attribute.Key("gen_ai.response.id")
	FinishReasons         = attribute.Key("gen_ai.response.finish_reasons")
	TimeToFirstChunk      = attribute.Key("gen_ai.response.time_to_first_chunk") // in seconds
	InputTokens           = attribute.Key("gen_ai.usage.input_tokens")
	OutputTokens          = attribute.Key("gen_ai.usage.output_tokens")
	CacheReadTokens       = attribute.Key("gen_ai.usage.cache_read.input_tokens")
	ReasoningTokens       = attribute.Key("gen_ai.usage.reasoning.output_tokens")
	TokenModality         = attribute.Key("gen_ai.token.modality")
	ToolName              = attribute.Key("gen_ai.tool.name")
	ToolType              = attribute.Key("gen_ai.tool.type")
	ToolDescription       = attribute.Key("gen_ai.tool.description")
	ToolCallID            = attribute.Key("gen_ai.tool.call.id")        // the model's own id
	ToolCallArguments     = attribute.Key("gen_ai.tool.call.arguments") // if [Captures]
	ToolCallResult        = attribute.Key("gen_ai.tool.call.result")    // if [Captures]
)

// Values of [Operation], which also start the names of spans.
const (
	OperationAgent = "invoke_agent"
	OperationChat  = "chat"
	OperationTool  = "execute_tool"
)

// ToolFunction is the [ToolType] of tools that run outside of the model's provider.
const ToolFunction = "function"

// ModalityUnknown is the [TokenModality] of tokens that a provider counts as one.
const ModalityUnknown = "unknown"

// Metrics. Durations are in seconds.
const (
	MetricTool            = "gen_ai.execute_tool.duration"
	MetricAgent           = "gen_ai.invoke_agent.duration"
	MetricModel           = "gen_ai.client.operation.duration"
	MetricFirstChunk      = "gen_ai.client.operation.time_to_first_chunk"
	MetricInputTokens     = "gen_ai.client.inference.usage.input_tokens"            //nolint:gosec // no credential
	MetricOutputTokens    = "gen_ai.client.inference.usage.output_tokens"           //nolint:gosec // likewise
	MetricCacheReadTokens = "gen_ai.client.inference.usage.cache_read.input_tokens" //nolint:gosec // likewise
	MetricReasoningTokens = "gen_ai.client.inference.usage.reasoning.output_tokens" //nolint:gosec // likewise
	MetricReplyInput      = "gen_ai.client.inference.operation.input_tokens"
	MetricReplyOutput     = "gen_ai.client.inference.operation.output_tokens"
)

// Attributes and values of MCP.
const (
	MCPMethod          = attribute.Key("mcp.method.name")
	MCPProtocolVersion = attribute.Key("mcp.protocol.version")
	NetworkTransport   = attribute.Key("network.transport") // [TransportPipe] or [TransportTCP]

	TransportPipe = "pipe" // stdio
	TransportTCP  = "tcp"  // HTTP

	// MethodCallTool is the [MCPMethod] of tool calls, and starts the names of their spans.
	MethodCallTool = "tools/call"

	MetricMCPClient = "mcp.client.operation.duration"
	MetricMCPServer = "mcp.server.operation.duration"

	MetricMCPClientSession = "mcp.client.session.duration"
	MetricMCPServerSession = "mcp.server.session.duration"
)

// captureVariable asks instrumentations for the contents of messages and tool calls.
const captureVariable = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

// Captures reports whether spans have arguments and results of tool calls: if the environment asks
// for them, because they may be private.
func Captures() bool {
	return slices.Contains([]string{"true", "1", "span_only", "span_and_event"}, strings.ToLower(strings.TrimSpace(os.Getenv(captureVariable))))
}

// maxCaptured bounds what a span has of arguments, and of a result, in bytes.
const maxCaptured = 16 << 10

// Captured is a text as an attribute.
func Captured(key attribute.Key, text string) attribute.KeyValue {
	return key.String(prose.Valid(prose.Cut(text, maxCaptured)))
}
