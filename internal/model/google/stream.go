package google

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// assembler puts a reply together from the chunks of a stream.
type assembler struct {
	endpoint.Assembler

	endpoint *endpoint.Endpoint
	offered  []tools.Definition
	searched *loop.NativeCall // nil unless the server searched
	parts    []endpoint.Piece
	calls    int
}

// read adds the next chunk, and passes its text to delta.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	chunk, err := lenient.Event("a chunk", data)
	if err != nil {
		return err
	}
	if a.Model == "" {
		a.Model, a.ID = chunk.String("modelVersion"), chunk.String("responseId")
	}
	a.count(chunk.Fields["usageMetadata"])
	if feedback, err := lenient.FieldsOf("promptFeedback", chunk.Fields["promptFeedback"]); err == nil {
		if reason := lenient.String(feedback["blockReason"]); reason != "" {
			return a.endpoint.NewError(endpoint.TypeContentFilter, fmt.Sprintf("the provider blocked the prompt (blockReason %q)", reason))
		}
	}
	candidates := chunk.Objects("candidates")
	for _, candidate := range candidates[:min(len(candidates), 1)] { // others were never asked for
		for _, part := range candidate.Object("content").Objects("parts") {
			a.readPart(part)
		}
		a.ground(candidate.Fields["groundingMetadata"])
		if reason := candidate.String("finishReason"); reason != "" {
			a.Finish = reason
		}
	}
	a.Emit(delta)
	return chunk.Fault()
}

func (a *assembler) readPart(part lenient.Object) {
	signature := part.String("thoughtSignature")
	is := func(name string) bool { return lenient.IsSet(part.Fields[name]) }
	switch {
	case is("functionCall"):
		call := part.Object("functionCall")
		a.AddCall(endpoint.CallPiece{
			Index: a.calls, ID: call.String("id"), Name: call.String("name"), Arguments: lenient.Written(call.Fields["args"]),
		})
		a.calls++
		a.parts = append(a.parts, endpoint.Piece{Type: endpoint.PieceCall, Signature: signature})
	case is("toolCall"), is("toolResponse"):
		a.parts = append(a.parts, endpoint.Piece{Type: "raw", Raw: part.Raw})
	case is("executableCode"), is("codeExecutionResult"):
		a.addCode(part.Fields)
		a.parts = append(a.parts, endpoint.Piece{Type: "raw", Raw: part.Raw})
	case is("inlineData"):
		a.addCode(part.Fields)
	case string(part.Fields["thought"]) == "true":
		a.Thought.Add(lenient.Piece(part.Fields["text"]))
	default:
		before := a.Text.Len()
		a.Text.Add(lenient.Piece(part.Fields["text"]))
		a.addText(a.Text.Len()-before, signature)
	}
}

// addText notes where a text of a length stands; texts in a row are one until it is signed.
func (a *assembler) addText(length int, signature string) {
	n := len(a.parts)
	if n == 0 || a.parts[n-1].Type != endpoint.PieceText || a.parts[n-1].Signature != "" {
		a.parts = append(a.parts, endpoint.Piece{Type: endpoint.PieceText})
		n++
	}
	a.parts[n-1].Text += length
	a.parts[n-1].Signature = signature
}

// count takes in what the API counts, of the whole reply so far. Thoughts count as output here.
func (a *assembler) count(raw json.RawMessage) {
	counts, err := lenient.FieldsOf("usageMetadata", raw)
	if err != nil || len(counts) == 0 {
		return
	}
	thought := lenient.Count(counts, "thoughtsTokenCount")
	a.Usage = protocol.Usage{
		InputTokens:     lenient.Count(counts, "promptTokenCount") + lenient.Count(counts, "toolUsePromptTokenCount"),
		OutputTokens:    lenient.Count(counts, "candidatesTokenCount") + thought,
		CachedTokens:    lenient.Count(counts, "cachedContentTokenCount"),
		ReasoningTokens: thought,
	}
}

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
	program, _ := lenient.FieldsOf("executableCode", part["executableCode"])
	result, _ := lenient.FieldsOf("codeExecutionResult", part["codeExecutionResult"])
	data, _ := lenient.FieldsOf("inlineData", part["inlineData"])
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
	about, err := lenient.FieldsOf("groundingMetadata", raw)
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
		source, _ := lenient.FieldsOf("groundingChunk", chunk)
		page, _ := lenient.FieldsOf("web", source["web"])
		found = append(found, strings.TrimSpace(lenient.String(page["title"])+" "+lenient.String(page["uri"])))
	}
	a.searched = &loop.NativeCall{
		Name: endpoint.NativeName(a.offered, provider, nativeSearch), Kind: nativeSearch, Uses: len(queries),
		Input: strings.Join(queries, "; "), Output: strings.Join(found, "\n"),
	}
}
