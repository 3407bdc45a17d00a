package terminal_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
)

var update = flag.Bool("update", false, "write the golden files")

// TestView_Transcripts pins what people see of a whole session.
func TestView_Transcripts(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*terminal.Options{
		"log.txt":    nil,
		"screen.txt": {Width: 80},
		"narrow.txt": {Width: 40},
		"plain.txt":  {Width: 80, Plain: true},
		"color.txt":  {Width: 80, Color: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := show(realistic(), o)
			file := filepath.Join("testdata", name)
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "run the tests with -update if the change is meant")
		})
	}
}
