package google

import (
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// The types of tools that Google runs itself.
const (
	nativeSearch = "googleSearch"
	nativeCode   = "codeExecution"
)

func (a *assembler) addNative(kind, input string) {
	a.Native = append(a.Native, loop.NativeCall{Name: endpoint.NativeName(a.offered, provider, kind), Kind: kind, Input: input})
}

// addCode adds a program that the server runs, its result, or an image: of the program, if one ran.
func (a *assembler) addCode(part lenient.Fields) {
	program, _ := lenient.Object("executableCode", part["executableCode"])
	result, _ := lenient.Object("codeExecutionResult", part["codeExecutionResult"])
	data, _ := lenient.Object("inlineData", part["inlineData"])
	image := endpoint.NativeImage(lenient.String(data["mimeType"]), lenient.String(data["data"]))
	last := len(a.Native) - 1
	if len(program) > 0 || last < 0 || image != nil && a.Native[last].Image != nil {
		a.addNative(nativeCode, lenient.String(program["code"]))
		last++
	}
	if len(result) > 0 {
		a.Native[last].Output = lenient.String(result["output"])
		a.Native[last].Failed = lenient.String(result["outcome"]) != "OUTCOME_OK"
	}
	if image != nil {
		a.Native[last].Image = image
	}
}

// ground takes in what the server searched for, and found; the last chunk has all of it.
func (a *assembler) ground(raw json.RawMessage) {
	about, err := lenient.Object("groundingMetadata", raw)
	if err != nil || !lenient.IsSet(about["webSearchQueries"]) {
		return
	}
	var queries, found []string
	list, _ := lenient.List("webSearchQueries", about["webSearchQueries"])
	for _, query := range list {
		queries = append(queries, lenient.String(query))
	}
	chunks, _ := lenient.List("groundingChunks", about["groundingChunks"])
	for _, chunk := range chunks {
		source, _ := lenient.Object("groundingChunk", chunk)
		page, _ := lenient.Object("web", source["web"])
		found = append(found, strings.TrimSpace(lenient.String(page["title"])+" "+lenient.String(page["uri"])))
	}
	a.searched = &loop.NativeCall{
		Name: endpoint.NativeName(a.offered, provider, nativeSearch), Kind: nativeSearch, Uses: len(queries), Input: strings.Join(queries, "; "), Output: strings.Join(found, "\n"),
	}
}
