package files

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// notebook is a Jupyter notebook, whose text has a line before each cell and before its output:
//
//	%% cell 1 [markdown]
//	# Title
//	%% cell 2 [code]
//	plot(x)
//	%% output of cell 2
//	| <Figure size 640x480>
//	| [image/png: left out]
//
// A change of this text is one of the notebook: lines of a cell, their order, and whole cells may
// change. A cell without a number is new. The number says which cell of the notebook it was.
type notebook struct {
	document *jsonDocument
	minor    int // of the version
	cells    []notebookCell
}

// notebookCell is a cell as the format has it.
type notebookCell struct {
	Type    string    `json:"cell_type"`
	Source  multiline `json:"source"`
	Outputs []struct {
		Text      multiline                  `json:"text"`
		Data      map[string]json.RawMessage `json:"data"`
		ErrorName string                     `json:"ename"`
		Error     string                     `json:"evalue"`
	} `json:"outputs"`
}

// multiline is a text that JSON has as a string, or as an array of its lines.
type multiline struct {
	text  string
	array bool
}

// UnmarshalJSON implements [json.Unmarshaler].
func (m *multiline) UnmarshalJSON(data []byte) error {
	var lines []string
	if m.array = json.Unmarshal(data, &lines) == nil; m.array {
		m.text = strings.Join(lines, "")
		return nil
	}
	return json.Unmarshal(data, &m.text)
}

// encoded is a text in the form that the notebook has for it.
func (m multiline) encoded(text string) ([]byte, error) {
	var value any = text
	if m.array {
		value = slices.Collect(strings.Lines(text))
		if text == "" {
			value = []string{}
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSpace(out.Bytes()), err
}

// heading is a line before a cell or its output.
var heading = regexp.MustCompile(`^%% (?:cell(?: ([1-9][0-9]{0,5}))? \[(code|markdown|raw)\]|output of cell ([1-9][0-9]{0,5}))\r?\n?$`)

// isNotebookText reports whether text begins like the text of a notebook.
func isNotebookText(text []byte) bool {
	first, _, _ := bytes.Cut(text, []byte{'\n'})
	return heading.Match(first)
}

// parseNotebook reads a notebook; ok is false for a document that is none, of a version before 4,
// or with lines in its cells that look like those before cells.
func parseNotebook(text []byte) (_ *notebook, ok bool) {
	var found struct {
		Version int            `json:"nbformat"`
		Minor   int            `json:"nbformat_minor"`
		Cells   []notebookCell `json:"cells"`
	}
	if json.Unmarshal(text, &found) != nil || found.Version < 4 || found.Cells == nil {
		return nil, false
	}
	document := &jsonDocument{text: text}
	if at, err := document.find([]string{"cells"}); err != nil || len(document.members(at)) != len(found.Cells) {
		return nil, false // a key that only looks alike
	}
	for _, cell := range found.Cells {
		if cell.Type != "code" && cell.Type != "markdown" && cell.Type != "raw" {
			return nil, false
		}
		for line := range strings.Lines(cell.Source.text) {
			if heading.MatchString(line) {
				return nil, false
			}
		}
	}
	return &notebook{document: document, minor: found.Minor, cells: found.Cells}, true
}

// Cells is how many there are.
func (n *notebook) Cells() int { return len(n.cells) }

// Text is the text of a notebook.
func (n *notebook) Text() []byte {
	var b bytes.Buffer
	for i, cell := range n.cells {
		fmt.Fprintf(&b, "%%%% cell %d [%s]\n", i+1, cell.Type)
		if cell.Source.text != "" {
			b.WriteString(cell.Source.text + "\n")
		}
		if output := cell.output(); output != "" {
			fmt.Fprintf(&b, "%%%% output of cell %d\n%s", i+1, output)
		}
	}
	return b.Bytes()
}

// maxOutput is how many bytes of the output of a cell its text has.
const maxOutput = 4000

// output is what a cell put out, without pictures; "" where that is nothing.
func (c *notebookCell) output() string {
	var b strings.Builder
	for _, output := range c.Outputs {
		b.WriteString(output.Text.text)
		if output.ErrorName != "" {
			b.WriteString(output.ErrorName + ": " + output.Error)
		}
		var plain multiline
		if json.Unmarshal(output.Data["text/plain"], &plain) == nil {
			b.WriteString(plain.text)
		}
		for _, media := range slices.Sorted(maps.Keys(output.Data)) {
			if strings.HasPrefix(media, "image/") || media != "text/plain" && output.Data["text/plain"] == nil {
				endLine(&b)
				b.WriteString("[" + media + ": left out]")
			}
		}
		endLine(&b)
	}
	text := b.String()
	if len(text) > maxOutput {
		shown := text[:prose.Border(text[:maxOutput])]
		text = shown + fmt.Sprintf("\n[... and %d more bytes]\n", len(text)-len(shown))
	}
	var lines strings.Builder
	for line := range strings.Lines(text) {
		lines.WriteString("| " + line)
	}
	return lines.String()
}

func endLine(b *strings.Builder) {
	if text := b.String(); text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
}

// section is a cell in a changed text.
type section struct {
	number  int // of the cell that it was; 0 is a new one
	kind    string
	source  string
	output  string
	outputs bool // there is an output
}

// With returns the notebook with a changed text. What did not change stays as it is written. The
// error says what the text cannot have.
func (n *notebook) With(text []byte) ([]byte, error) {
	sections, err := n.sections(string(text))
	if err != nil {
		return nil, err
	}
	document := n.document
	replace := func(number int, key string, value []byte) {
		if err == nil {
			var after []byte
			after, err = document.Replace([]string{"cells", strconv.Itoa(number - 1), key}, value)
			document = &jsonDocument{text: after}
		}
	}
	same := len(sections) == len(n.cells)
	for i, s := range sections {
		if same = same && s.number == i+1; s.number == 0 {
			continue
		}
		cell := n.cells[s.number-1]
		if cell.Source.text != s.source {
			encoded, encodeErr := cell.Source.encoded(s.source)
			err = cmp.Or(err, encodeErr)
			replace(s.number, "source", encoded)
		}
		if !s.outputs && len(cell.Outputs) > 0 && cell.output() != "" {
			replace(s.number, "outputs", []byte("[]"))
			replace(s.number, "execution_count", []byte("null"))
		}
	}
	if err != nil || same {
		return document.text, err
	}
	return n.arranged(document, sections)
}

// sections reads a changed text.
func (n *notebook) sections(text string) ([]section, error) {
	var all []section
	seen, inOutput := map[int]bool{}, false
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for line := range strings.Lines(text) {
		found := heading.FindStringSubmatch(line)
		if found == nil && len(all) == 0 {
			return nil, badNotebook("there is text before the first cell, which begins with a line such as %%%% cell [code]")
		}
		if found == nil {
			if last := &all[len(all)-1]; inOutput {
				last.output += line
			} else {
				last.source += line
			}
			continue
		}
		number, _ := strconv.Atoi(found[1] + found[3]) // one of them is empty
		switch inOutput = found[3] != ""; {
		case inOutput && (len(all) == 0 || all[len(all)-1].number != number || all[len(all)-1].outputs):
			return nil, badNotebook("the output of cell %d must follow that cell", number)
		case inOutput:
			all[len(all)-1].outputs = true
			continue
		case number > len(n.cells):
			return nil, badNotebook("there is no cell %d: a new one has no number", number)
		case number > 0 && seen[number]:
			return nil, badNotebook("cell %d is there twice: a new one has no number", number)
		case number > 0 && n.cells[number-1].Type != found[2]:
			return nil, badNotebook("cell %d cannot become a %s cell: remove it, and add one without a number", number, found[2])
		}
		seen[number] = true
		all = append(all, section{number: number, kind: found[2]})
	}
	for i, s := range all {
		all[i].source = strings.TrimSuffix(s.source, "\n")
		if s.outputs && s.output != n.cells[s.number-1].output() {
			return nil, badNotebook("the output of cell %d was changed: it can only be removed, with the line before it", s.number)
		}
	}
	return all, nil
}

func badNotebook(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidArguments, "the changed text is none of a notebook: "+format+"; nothing was changed", args...)
}

// arranged returns a document with other cells, or in another order.
func (n *notebook) arranged(document *jsonDocument, sections []section) ([]byte, error) {
	at, err := document.find([]string{"cells"})
	if err != nil {
		return nil, err
	}
	members := document.members(at)
	unit := indentUnit(document.text, "")
	outer := lineIndent(document.text, at.start)
	lead, tail := "", ""
	if unit != "" {
		lead, tail = "\n"+outer+unit, "\n"+outer
	}
	if len(members) > 0 {
		lead = string(document.text[at.start+1 : members[0].at.start])
		tail = string(document.text[members[len(members)-1].at.end : at.end-1])
	}
	out := []byte{'['}
	for i, s := range sections {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, lead...)
		if s.number > 0 {
			out = append(out, document.text[members[s.number-1].at.start:members[s.number-1].at.end]...)
			continue
		}
		cell, err := n.newCell(s)
		if err != nil {
			return nil, err
		}
		out = append(out, lineEndsOf(document.text, indent(cell, strings.TrimLeft(lead, "\r\n"), unit))...)
	}
	if len(sections) > 0 {
		out = append(out, tail...)
	}
	return slices.Concat(document.text[:at.start], out, []byte{']'}, document.text[at.end:]), nil
}

// newCell is the JSON of a cell that was not there before.
func (n *notebook) newCell(s section) ([]byte, error) {
	source, err := multiline{array: true}.encoded(s.source)
	if err != nil {
		return nil, err
	}
	id, code := "", ""
	if n.minor >= 5 {
		id = `"id": "` + strings.ToLower(rand.Text()[:8]) + `", `
	}
	if s.kind == "code" {
		code = `"execution_count": null, "outputs": [], `
	}
	return fmt.Appendf(nil, `{"cell_type": %q, %s%s"metadata": {}, "source": %s}`, s.kind, id, code, source), nil
}
