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
		a.Model, a.ID = lenient.String(chunk["modelVersion"]), lenient.String(chunk["responseId"])
	}
	a.count(chunk["usageMetadata"])
	if feedback, err := lenient.Object("promptFeedback", chunk["promptFeedback"]); err == nil {
		if reason := lenient.String(feedback["blockReason"]); reason != "" {
			return a.endpoint.NewError(endpoint.TypeContentFilter, fmt.Sprintf("the provider blocked the prompt (blockReason %q)", reason))
		}
	}
	candidates, err := lenient.List("candidates", chunk["candidates"])
	for i := 0; err == nil && i < min(len(candidates), 1); i++ { // others were never asked for
		err = a.readCandidate(candidates[i])
	}
	a.Emit(delta)
	return err
}

func (a *assembler) readCandidate(raw json.RawMessage) error {
	candidate, err := lenient.Object("candidates[0]", raw)
	if err != nil {
		return err
	}
	said, err := lenient.Object("candidates[0].content", candidate["content"])
	if err != nil {
		return err
	}
	parts, err := lenient.List("candidates[0].content.parts", said["parts"])
	for i := 0; err == nil && i < len(parts); i++ {
		err = a.readPart(fmt.Sprintf("candidates[0].content.parts[%d]", i), parts[i])
	}
	a.ground(candidate["groundingMetadata"])
	if reason := lenient.String(candidate["finishReason"]); reason != "" {
		a.Finish = reason
	}
	return err
}

func (a *assembler) readPart(where string, raw json.RawMessage) error {
	part, err := lenient.Object(where, raw)
	if err != nil {
		return err
	}
	signature := lenient.String(part["thoughtSignature"])
	switch {
	case lenient.IsSet(part["functionCall"]):
		call, err := lenient.Object(where+".functionCall", part["functionCall"])
		if err != nil {
			return err
		}
		a.AddCall(endpoint.CallPiece{
			Index: a.calls, ID: lenient.String(call["id"]), Name: lenient.String(call["name"]), Arguments: lenient.Written(call["args"]),
		})
		a.calls++
		a.parts = append(a.parts, endpoint.Piece{Type: endpoint.PieceCall, Signature: signature})
	case lenient.IsSet(part["executableCode"]), lenient.IsSet(part["codeExecutionResult"]),
		lenient.IsSet(part["toolCall"]), lenient.IsSet(part["toolResponse"]):
		if !lenient.IsSet(part["toolCall"]) && !lenient.IsSet(part["toolResponse"]) {
			a.addCode(part)
		}
		a.parts = append(a.parts, endpoint.Piece{Type: "raw", Raw: raw})
	case lenient.IsSet(part["inlineData"]):
		a.addCode(part)
	case string(part["thought"]) == "true":
		a.Thought.Add(lenient.Piece(part["text"]))
	default:
		before := a.Text.Len()
		a.Text.Add(lenient.Piece(part["text"]))
		a.addText(a.Text.Len()-before, signature)
	}
	return nil
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
	counts, err := lenient.Object("usageMetadata", raw)
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
