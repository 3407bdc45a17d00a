//go:build linux

package ns_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestFiles_EverybodyGetsHisOwnReply beside the ends of commands.
func TestFiles_EverybodyGetsHisOwnReply(t *testing.T) {
	t.Parallel()
	s := open(t)
	var all sync.WaitGroup
	for n := range 4 {
		name := fmt.Sprintf("file %d", n)
		all.Go(func() {
			if _, err := s.FS().Write(t.Context(), protocol.FilesWrite{Path: name, Content: []byte(name)}); err != nil {
				t.Errorf("write %s: %v", name, err)
			}
			for range 300 {
				got, err := s.FS().Read(t.Context(), protocol.FilesRead{Path: name})
				if err != nil || string(got.Content) != name {
					t.Errorf("read %s: %q, %v", name, got.Content, err)
				}
			}
		})
	}
	all.Go(func() {
		for n := range 30 {
			word := fmt.Sprint("word ", n)
			result, err := s.Exec(t.Context(), sandbox.Cmd{Argv: []string{"echo", "-n", word}})
			if err != nil || string(result.Stdout.Data) != word {
				t.Errorf("echo %s: %q, %v", word, result.Stdout.Data, err)
			}
		}
	})
	all.Wait()
}
