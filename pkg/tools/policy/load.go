package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/tools/internal/strict"
)

// maxFile bounds a policy file.
const maxFile = 1 << 20

// Load reads a policy file, YAML or JSON, and checks it. The error names the file and,
// where it can, the line of every fault.
func Load(file string) (Policy, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Policy{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return Policy{}, fmt.Errorf("%s: must be a file of at most %d bytes", file, maxFile)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return Policy{}, err
	}
	if len(bytes.TrimSpace(content)) == 0 { // half a write, perhaps: no fence where one was wanted
		return Policy{}, fmt.Errorf("%s: is empty; the fields of a policy are %s", file, strings.Join(strict.Fields(reflect.TypeFor[Policy]()), ", "))
	}
	return Parse(file, content)
}

// Parse is [Load] for content at hand; file is its name in errors.
func Parse(file string, content []byte) (Policy, error) {
	var p Policy
	var faults []error
	for _, fault := range strict.Decode(content, &p) {
		faults = append(faults, fmt.Errorf("%s:%d: %s", file, fault.Line, fault.Message))
	}
	if len(faults) == 0 {
		if _, err := New(p); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
		}
	}
	return p, errors.Join(faults...)
}
