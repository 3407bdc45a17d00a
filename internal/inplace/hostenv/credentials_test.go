package hostenv_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/inplace/hostenv"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
)

// TestGitCredentials_AnswersWhatIsAskedForOneHost: whatever talks to the door, and in which words.
func TestGitCredentials_AnswersWhatIsAskedForOneHost(t *testing.T) {
	dir := t.TempDir()
	asked, settings := filepath.Join(dir, "asked"), filepath.Join(dir, "gitconfig")
	helper := "!f() { cat >>'" + asked + "'; echo username=ada; echo password=secret; echo password_expiry_utc=9999999999; }; f"
	require.NoError(t, os.WriteFile(settings, []byte("[credential]\n\thelper = \""+helper+"\"\n"), 0o600))
	t.Setenv("GIT_CONFIG_GLOBAL", settings)
	t.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	doors, err := hostenv.OpenDoors(hostenv.View{})
	require.NoError(t, err)
	defer func() { require.NoError(t, doors.Close()) }()
	require.NoError(t, doors.GitCredentials(t.Context(), []string{"git.example"}))
	ask := func(question string) string {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: filepath.Join(doors.Mount().Host, "git-credentials")})
		require.NoError(t, err)
		defer conn.Close()
		_, err = io.WriteString(conn, question)
		require.NoError(t, err)
		require.NoError(t, conn.CloseWrite())
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		return string(answer)
	}
	for _, question := range []string{
		"", "action=get\n", "action=get\nprotocol=https\n", "action=get\nhost=git.example\n", "protocol=https\nhost=git.example\n",
		"action=store\nprotocol=https\nhost=git.example\nusername=x\npassword=y\n", "action=erase\nprotocol=https\nhost=git.example\n",
		"action=get\nprotocol=http\nhost=git.example\n", "action=get\nprotocol=https\nhost=other.example\n", "action=get\nprotocol=https\nhost=git.example:8443\n",
		"action=get\nprotocol=https\nhost=git.example\nhost=other.example\n", "action=get\nprotocol=https\nurl=https://git.example\n",
	} {
		require.Empty(t, ask(question), question)
		require.NoFileExists(t, asked, question)
	}
	const answer = "username=ada\npassword=secret\n"
	require.Equal(t, answer, ask("action=get\ntimeout=900\nprotocol=https\nhost=git.example\npath=a/b\nurl=https://other.example\n"))
	require.Equal(t, answer, ask("action=get\nprotocol=https\nhost=GIT.example\n"))
	question, err := os.ReadFile(asked)
	require.NoError(t, err)
	const one = "protocol=https\nhost=git.example\n"
	require.Equal(t, one+one, string(question), "nothing of the question reaches the helper")
}

func TestParseCredentialHost(t *testing.T) {
	t.Parallel()
	allow, err := egress.ParseAllow("github.com,git.example:8443")
	require.NoError(t, err)
	for text, want := range map[string]string{
		"github.com": "github.com", "GitHub.com.": "github.com", "github.com:443": "github.com", "git.example:8443": "git.example:8443",
	} {
		host, err := hostenv.ParseCredentialHost(text, allow)
		require.NoError(t, err, text)
		require.Equal(t, want, host)
	}
	for text, says := range map[string]string{
		"git.example": "--allow-net does not list git.example:443; list it, as in --allow-net git.example:443",
		"github.com:": `port ""`, "https://github.com": "github.com", "": `""`,
	} {
		_, err := hostenv.ParseCredentialHost(text, allow)
		require.ErrorContains(t, err, says, text)
	}
}
