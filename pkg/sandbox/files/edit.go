package files

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// maxPlaces is how many lines are named when a text occurs more than once.
const maxPlaces = 10

// Edit implements [sandbox.FS].
func (f *FS) Edit(ctx context.Context, req sandbox.EditRequest) (sandbox.EditResult, error) {
	name, err := clean(f.root.Name(), req.Path)
	if err != nil {
		return sandbox.EditResult{}, err
	}
	result, err := f.edit(ctx, name, req)
	if err != nil {
		return sandbox.EditResult{}, f.fault("edit", name, err)
	}
	return result, nil
}

func (f *FS) edit(ctx context.Context, name string, req sandbox.EditRequest) (sandbox.EditResult, error) {
	var result sandbox.EditResult
	if err := checkEdit(req); err != nil {
		return result, err
	}
	target, err := f.target(name)
	if err != nil {
		return result, err
	}
	before, info, err := f.loadWritable(ctx, target)
	if err != nil {
		return result, err
	}
	after, n, err := substitute(name, before, req)
	if err != nil {
		return result, err
	}
	if err := f.replace(target, after, info); err != nil {
		return result, err
	}
	return sandbox.EditResult{
		Replacements: n,
		Size:         int64(len(after)),
		SHA256:       digest(after),
		Diff:         diff(name, before, after, false),
	}, nil
}

func checkEdit(req sandbox.EditRequest) error {
	switch req.Old {
	case "":
		return sandbox.Faultf(sandbox.FaultArguments,
			"the old text is empty; give the text to replace, or use write for a new file")
	case req.New:
		return sandbox.Faultf(sandbox.FaultArguments, "the old and the new text are the same; nothing would change")
	default:
		return nil
	}
}

// substitute returns content with the replacements that req asks for, and their number.
func substitute(name string, content []byte, req sandbox.EditRequest) ([]byte, int, error) {
	old := []byte(req.Old)
	places := occurrences(content, old, maxPlaces+1)
	if len(places) == 0 {
		return nil, 0, sandbox.Faultf(sandbox.FaultEditNotFound,
			"the old text is not in %q; nothing was changed. %s", name, hint(content, req))
	}
	count := bytes.Count(content, old)
	if len(places) > 1 && !req.All {
		return nil, 0, notUnique(name, content, places, max(count, len(places)))
	}
	if size := len(content) + count*(len(req.New)-len(old)); size > sandbox.MaxFileSize {
		return nil, 0, sandbox.Faultf(sandbox.FaultTooLarge,
			"%q would have %d bytes, at most %d are possible; nothing was changed", name, size, sandbox.MaxFileSize)
	}
	return bytes.Replace(content, old, []byte(req.New), count), count, nil
}

// occurrences returns where old is found in content, at most limit places. Those
// that overlap count, too: which of them was meant cannot be known.
func occurrences(content, old []byte, limit int) []int {
	var places []int
	for from := 0; len(places) < limit; {
		i := bytes.Index(content[from:], old)
		if i < 0 {
			break
		}
		places = append(places, from+i)
		from += i + 1
	}
	return places
}

func notUnique(name string, content []byte, places []int, count int) error {
	var lines strings.Builder
	line, from := 1, 0
	for i, at := range places[:min(len(places), maxPlaces)] {
		line += bytes.Count(content[from:at], []byte{'\n'})
		from = at
		if i > 0 {
			lines.WriteString(", ")
		}
		fmt.Fprint(&lines, line)
	}
	if len(places) > maxPlaces {
		lines.WriteString(", ...")
	}
	return sandbox.Faultf(sandbox.FaultEditNotUnique,
		"the old text occurs %d times in %q, at lines %s; nothing was changed. "+
			"Give more of the text around the one that is meant, or ask for all to be replaced", count, name, lines.String())
}
