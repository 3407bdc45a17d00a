package looptest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJournal(t *testing.T) {
	t.Parallel()
	looptest.RunJournal(t, func(*testing.T) loop.Journal { return &looptest.Journal{} })
}
