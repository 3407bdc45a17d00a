package check

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// stage is one FROM of a Dockerfile.
type stage struct {
	from, name   string
	instructions []string
}

// stages reads ../Dockerfile: instructions with their continued lines joined, and no comments.
func stages(t *testing.T) map[string]stage {
	t.Helper()
	content, err := os.ReadFile("../Dockerfile")
	require.NoError(t, err)
	text := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(content), "")
	text = strings.ReplaceAll(text, "\\\n", " ")
	all := map[string]stage{}
	var current stage
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
			continue
		case fields[0] == "FROM":
			require.Len(t, fields, 4, "every stage has a name: %s", line)
			current = stage{from: fields[1], name: fields[3]}
		default:
			current.instructions = append(current.instructions, strings.Join(fields, " "))
		}
		all[current.name] = current
	}
	return all
}

func TestDockerfile_BasesArePinned(t *testing.T) {
	t.Parallel()
	for name, stage := range stages(t) {
		requirePinned(t, stage.from, name)
	}
}

func TestDockerfile_HasTheTargetsThatComposeBuilds(t *testing.T) {
	t.Parallel()
	all := stages(t)
	for name, service := range project(t).Services {
		if service.Build == nil {
			continue
		}
		context, err := filepath.Abs("../../..")
		require.NoError(t, err)
		require.Equal(t, context, service.Build.Context, "%s is built from the root of the repository", name)
		require.Equal(t, "deploy/compose/Dockerfile", filepath.ToSlash(service.Build.Dockerfile))
		target, found := all[service.Build.Target]
		require.True(t, found, "%s: no target %q", name, service.Build.Target)
		require.Contains(t, target.instructions, "USER "+service.User, "%s: the image has another user", name)
	}
}

// TestDockerfile_DataIsWritable: a new volume takes its owner from the image's directory.
func TestDockerfile_DataIsWritable(t *testing.T) {
	t.Parallel()
	all := stages(t)
	for _, name := range []string{"nats", "worker"} {
		text := strings.Join(all[name].instructions, "\n")
		require.Regexp(t, `install -d -o (10001|worker) -g (10001|worker) .*/data`, text, name)
		require.Less(t, strings.Index(text, "install -d"), strings.Index(text, "USER "), "%s: root makes the directory", name)
	}
}

// TestDockerfile_CopiesWhatIsThere checks sources against the tree and the ignore file.
func TestDockerfile_CopiesWhatIsThere(t *testing.T) {
	t.Parallel()
	ignore, err := os.ReadFile("../Dockerfile.dockerignore")
	require.NoError(t, err)
	for name, stage := range stages(t) {
		for _, instruction := range stage.instructions {
			fields := strings.Fields(instruction)
			if fields[0] != "COPY" || strings.HasPrefix(fields[1], "--from") {
				continue
			}
			for _, source := range fields[1 : len(fields)-1] {
				_, err := os.Stat(filepath.Join("../../..", source))
				require.NoError(t, err, name)
				require.Contains(t, string(ignore), "\n!"+source+"\n", "%s is not sent to the builder", source)
			}
		}
	}
}
