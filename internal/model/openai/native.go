package openai

import (
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// The types of tools that OpenAI runs itself; their items have "_call" behind.
const (
	nativeSearch = "web_search"
	nativeCode   = "code_interpreter"
	nativeImage  = "image_generation"
)

// included is what a request asks for so that calls of native tools come with their results.
func included(offered []tools.Definition) []string {
	var include []string
	for _, definition := range offered {
		switch {
		case endpoint.IsNative(definition, nativeProvider, nativeSearch):
			include = append(include, "web_search_call.action.sources")
		case endpoint.IsNative(definition, nativeProvider, nativeCode):
			include = append(include, "code_interpreter_call.outputs")
		}
	}
	return include
}

// addNative adds a call that the server ran itself, as its item has it.
func (a *responsesAssembler) addNative(kind string, item lenient.Fields) {
	kind = strings.TrimSuffix(kind, "_call")
	call := loop.NativeCall{Name: endpoint.NativeName(a.offered, nativeProvider, kind), Kind: kind, Failed: lenient.String(item["status"]) == "failed"}
	switch kind {
	case nativeSearch:
		action, _ := lenient.Object("action", item["action"])
		call.Input = endpoint.NativeText(action, "query", "url", "pattern")
		call.Output = addresses(action["sources"])
	case nativeCode:
		call.Input = lenient.String(item["code"])
		outputs, _ := lenient.List("outputs", item["outputs"])
		var texts []string
		for _, raw := range outputs {
			output, _ := lenient.Object("output", raw)
			texts = append(texts, endpoint.NativeText(output, "logs", "url"))
		}
		call.Output = strings.Join(texts, "\n")
	case nativeImage:
		call.Input = lenient.String(item["revised_prompt"])
		format := lenient.String(item["output_format"])
		if format == "" {
			format = "png"
		}
		call.Image = endpoint.NativeImage("image/"+format, lenient.String(item["result"]))
	default:
		return
	}
	a.Native = append(a.Native, call)
}

// addresses are the URLs of a list of objects, one a line.
func addresses(raw json.RawMessage) string {
	list, _ := lenient.List("sources", raw)
	var urls []string
	for _, entry := range list {
		source, _ := lenient.Object("source", entry)
		if url := lenient.String(source["url"]); url != "" {
			urls = append(urls, url)
		}
	}
	return strings.Join(urls, "\n")
}
