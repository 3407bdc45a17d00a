package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestOrder_TwoClientsOfOneFile has two clients add lines to one file, and read it: no line is
// lost, and nobody sees half of a change.
func TestOrder_TwoClientsOfOneFile(t *testing.T) {
	t.Parallel()
	workspace, each := t.TempDir(), 25
	if *tables {
		each = 1000
	}
	file := filepath.Join(workspace, "n")
	require.NoError(t, os.WriteFile(file, []byte("end\n"), 0o600))
	url := serve(t, "--workspace", workspace)
	group, ctx := errgroup.WithContext(t.Context())
	for k := range 2 {
		c := connect(t, url)
		group.Go(func() error {
			for i := range each {
				if err := addAndRead(ctx, c, k, i); err != nil {
					return fmt.Errorf("client %d, line %d: %w", k, i, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 2*each+1, strings.Count(string(content), "\n"))
	if *tables {
		fmt.Printf("\ntwo clients of one file: %d changes, as many reads, none lost, none torn\n", 2*each)
	}
}

var errOrder = errors.New("wrong order")

// addAndRead has client k add its line i, and checks what it reads then.
func addAndRead(ctx context.Context, c *mcp.ClientSession, k, i int) error {
	result, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "edit", Arguments: map[string]any{
		"path": "n", "old": "end\n", "new": fmt.Sprintf("%d:%d\nend\n", k, i),
	}})
	if err != nil {
		return err
	}
	if result.IsError {
		return fmt.Errorf("%w: %v", errOrder, result.StructuredContent)
	}
	read, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "toolfleet://workspace/n"})
	if err != nil {
		return err
	}
	text, whole := strings.CutSuffix(read.Contents[0].Text, "\nend\n")
	if !whole {
		return fmt.Errorf("%w: the end is torn: %q", errOrder, text)
	}
	next := map[string]int{}
	for line := range strings.SplitSeq(text, "\n") {
		client, number, _ := strings.Cut(line, ":")
		if number != fmt.Sprint(next[client]) {
			return fmt.Errorf("%w: line %q, not number %d", errOrder, line, next[client])
		}
		next[client]++
	}
	if next[fmt.Sprint(k)] != i+1 {
		return fmt.Errorf("%w: %d lines of its own", errOrder, next[fmt.Sprint(k)])
	}
	return nil
}
