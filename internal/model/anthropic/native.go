package anthropic

import (
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// native are the calls of the reply that the server ran itself, each with the result that names it.
func (a *assembler) native(offered []tools.Definition) []loop.NativeCall {
	var calls []loop.NativeCall
	byID := map[string]int{}
	for _, b := range a.blocks {
		whole, err := lenient.Object("block", b.whole())
		if err != nil {
			continue
		}
		if b.kind == "server_tool_use" {
			input, _ := lenient.Object("input", whole["input"])
			text := endpoint.NativeText(input, "query", "command", "code", "url")
			if text == "" {
				text = string(whole["input"])
			}
			byID[lenient.String(whole["id"])] = len(calls)
			kind := nativeKind(lenient.String(whole["name"]))
			calls = append(calls, loop.NativeCall{Name: endpoint.NativeName(offered, provider, kind), Kind: kind, Input: text})
			continue
		}
		if at, known := byID[lenient.String(whole["tool_use_id"])]; known && strings.HasSuffix(b.kind, "_tool_result") {
			calls[at].Output, calls[at].Failed = nativeResult(whole["content"])
		}
	}
	return calls
}

// nativeKind is the type of the tool as it is declared: code execution has several names here.
func nativeKind(name string) string {
	for _, kind := range []string{"web_search", "web_fetch", "code_execution"} {
		if strings.HasSuffix(name, kind) {
			return kind
		}
	}
	return name
}

// nativeResult returns the result for people: titles and addresses, or the output of a program.
func nativeResult(raw json.RawMessage) (text string, failed bool) {
	if lenient.Kind(raw) == '[' {
		list, _ := lenient.List("content", raw)
		var lines []string
		for _, entry := range list {
			found, _ := lenient.Object("result", entry)
			lines = append(lines, strings.TrimSpace(lenient.String(found["title"])+" "+lenient.String(found["url"])))
		}
		return strings.Join(lines, "\n"), false
	}
	content, _ := lenient.Object("content", raw)
	if code := lenient.String(content["error_code"]); code != "" {
		return code, true
	}
	text = lenient.String(content["stdout"]) + lenient.String(content["stderr"])
	if text == "" {
		text = endpoint.NativeText(content, "content", "url")
	}
	code, err := lenient.Whole(content["return_code"])
	return text, err == nil && code != 0
}
