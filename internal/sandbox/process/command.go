package process

import (
	"errors"
	"maps"
	"os"
	"os/exec"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// command builds what cmd asks for. The directory, in which the command is to
// start, has to stay open until then.
func (s *Sandbox) command(cmd sandbox.Cmd) (*exec.Cmd, *os.File, error) {
	if err := start.CheckArgv(cmd.Argv); err != nil {
		return nil, nil, err
	}
	if err := start.CheckEnv(cmd.Env); err != nil {
		return nil, nil, err
	}
	dir, err := s.workspace.OpenDir(cmd.Dir)
	if err != nil {
		return nil, nil, err
	}
	env := s.env(cmd.Env)
	path, err := start.Lookup(cmd.Argv[0], env["PATH"], dir.Name())
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	argv := cmd.Argv
	if s.driver.wrap != nil {
		if path, argv, err = s.driver.wrap(cmd, path, argv); err != nil {
			return nil, nil, errors.Join(err, dir.Close())
		}
	}
	return &exec.Cmd{Path: path, Args: argv, Env: start.Environ(env), Dir: startDir(dir)}, dir, nil
}

// env is the complete environment of a command.
func (s *Sandbox) env(extra map[string]string) map[string]string {
	env := map[string]string{"HOME": s.scratch.Home(), "TMPDIR": s.scratch.Temp()}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, extra)
	return env
}
