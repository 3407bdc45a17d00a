package check

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	composeFile = "../compose.yaml"
	clusterFile = "../compose.cluster.yaml"
)

// needed is what .env must have, by what is not there by default.
func needed() map[string]string {
	return map[string]string{"FLEET_PASSWORD": "tf-secret", "WORKER_PASSWORD": "tf-lesser", "READER_PASSWORD": "tf-least", "TOOLFLEET_MODEL": "openai:model"}
}

// environ is what is needed, and more.
func environ(more ...string) []string {
	for name, value := range needed() {
		more = append(more, name+"="+value)
	}
	return more
}

// load reads the compose file as `docker compose config` does, with nothing but env around it.
func load(ctx context.Context, env ...string) (*types.Project, error) {
	return loadFiles(ctx, []string{composeFile}, env...)
}

func loadFiles(ctx context.Context, files []string, env ...string) (*types.Project, error) {
	options, err := cli.NewProjectOptions(files, cli.WithEnv(env), cli.WithResolvedPaths(true))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(ctx)
}

func project(t *testing.T) *types.Project {
	t.Helper()
	loaded, err := load(t.Context(), environ()...)
	require.NoError(t, err)
	return loaded
}

func TestCompose_HasItsServices(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, []string{"nats", "coordinator", "worker", "jaeger", "prometheus", "grafana"}, project(t).ServiceNames())
}

// TestCompose_AsksForWhatHasNoDefault: no secret is known beforehand, and a coordinator without a
// model would not start.
func TestCompose_AsksForWhatHasNoDefault(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../.env.example")
	require.NoError(t, err)
	for missing, value := range needed() {
		without := slices.DeleteFunc(environ(), func(v string) bool { return v == missing+"="+value })
		for name, env := range map[string][]string{"unset": without, "empty": append(without, missing+"=")} {
			_, err := load(t.Context(), env...)
			require.ErrorContains(t, err, missing, name)
			require.ErrorContains(t, err, ".env", "says where to set it")
		}
		require.Contains(t, string(example), "\n"+missing+"=\n")
	}
}

func TestCompose_EveryServiceIsConfined(t *testing.T) {
	t.Parallel()
	for name, service := range project(t).Services {
		require.Regexp(t, `^[1-9][0-9]*:[1-9][0-9]*$`, service.User, "%s must not run as root", name)
		require.True(t, service.ReadOnly, "%s: root file system", name)
		require.Equal(t, []string{"ALL"}, service.CapDrop, name)
		require.Contains(t, service.SecurityOpt, "no-new-privileges:true", name)
		require.False(t, service.Privileged, name)
		require.Empty(t, service.CapAdd, name)
		require.Empty(t, service.NetworkMode, name)
		for _, volume := range service.Volumes {
			require.Equal(t, types.VolumeTypeVolume, volume.Type, "%s mounts %s of the host", name, volume.Source)
		}
	}
}

func TestCompose_EveryServiceIsCheckedOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	for name, service := range project(t).Services {
		if service.HealthCheck != nil && !service.HealthCheck.Disable && len(service.HealthCheck.Test) > 1 {
			continue
		}
		reason, _ := service.Extensions["x-no-healthcheck"].(string)
		require.NotEmpty(t, reason, "%s has no healthcheck and no x-no-healthcheck", name)
	}
}

// TestCompose_DependenciesCanBecomeHealthy: waiting for a service without a healthcheck never ends.
func TestCompose_DependenciesCanBecomeHealthy(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	for name, service := range services {
		for needed, dependency := range service.DependsOn {
			if dependency.Condition == types.ServiceConditionHealthy {
				require.NotNil(t, services[needed].HealthCheck, "%s waits for %s", name, needed)
			}
		}
	}
}

func TestCompose_ImagesArePinned(t *testing.T) {
	t.Parallel()
	for name, service := range project(t).Services {
		requirePinned(t, service.Image, name)
	}
}

func TestCompose_PortsAreOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for name, service := range project(t).Services {
		for _, port := range service.Ports {
			ip := net.ParseIP(port.HostIP)
			require.True(t, ip != nil && ip.IsLoopback(), "%s publishes %s on %q", name, port.Published, port.HostIP)
		}
	}
}

// TestCompose_WorkersScale: a fixed name or a published port allows one container only.
func TestCompose_WorkersScale(t *testing.T) {
	t.Parallel()
	worker := project(t).Services["worker"]
	require.Empty(t, worker.ContainerName)
	require.Empty(t, worker.Ports)
	require.Empty(t, worker.Hostname)
	require.Equal(t, 2, worker.GetScale())
	require.Empty(t, worker.Volumes, "each worker has a volume of its own: the image's")
	require.Equal(t, "/data", *worker.Environment["TOOLFLEET_DATA"])
	require.Contains(t, stages(t)["worker"].instructions, "VOLUME /data")
}

// TestCompose_WorkersIsolate: with the filter that lets them make sandboxes, which is the only
// thing that is theirs alone, and not without sandboxes of level full.
func TestCompose_WorkersIsolate(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	for _, name := range []string{"coordinator", "worker"} {
		require.Equal(t, "full", *services[name].Environment["TOOLFLEET_MIN_LEVEL"], name)
	}
	worker := services["worker"]
	require.NotContains(t, worker.Environment, "TOOLFLEET_SANDBOX", "the best that isolates is the default")
	require.ElementsMatch(t, []string{"no-new-privileges:true", "seccomp=../seccomp.json", "systempaths=unconfined", "apparmor=unconfined"}, worker.SecurityOpt)
	require.Greater(t, worker.PidsLimit, int64(4*1024+300), "a worker that gets no thread ends")
}

// TestCompose_ToolsHaveNoWayOut: the only network of workers is internal.
func TestCompose_ToolsHaveNoWayOut(t *testing.T) {
	t.Parallel()
	loaded := project(t)
	networks := loaded.Services["worker"].Networks
	require.NotEmpty(t, networks)
	for name := range networks {
		require.True(t, loaded.Networks[name].Internal, "network %s of the worker", name)
	}
}

func TestCompose_EverybodyUsesTheSameServers(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	for name, url := range map[string]string{"coordinator": "nats://fleet:tf-secret@nats:4222", "worker": "nats://worker:tf-lesser@nats:4222"} {
		env := services[name].Environment
		require.Equal(t, url, *env["TOOLFLEET_NATS"])
		require.Equal(t, "http://jaeger:4318", *env["OTEL_EXPORTER_OTLP_ENDPOINT"])
	}
	require.Equal(t, "default=nats://fleet_default:tf-secret@nats:4222", *services["coordinator"].Environment["TOOLFLEET_POOL_NATS"])
	require.Equal(t, "tf-secret", *services["nats"].Environment["FLEET_PASSWORD"])
	require.Equal(t, "tf-lesser", *services["nats"].Environment["WORKER_PASSWORD"])
	require.Equal(t, "tf-least", *services["nats"].Environment["READER_PASSWORD"])
	require.Contains(t, services["worker"].DependsOn, "coordinator", "workers may not make the streams")
}

// TestCompose_WorkersHaveNoKeyButTheirs: what a model runs can read all that its worker has.
func TestCompose_WorkersHaveNoKeyButTheirs(t *testing.T) {
	t.Parallel()
	loaded, err := load(t.Context(), environ("OPENAI_API_KEY=sk-1")...)
	require.NoError(t, err)
	worker, err := yaml.Marshal(loaded.Services["worker"])
	require.NoError(t, err)
	require.Contains(t, string(worker), "tf-lesser")
	require.NotContains(t, string(worker), "tf-secret")
	require.NotContains(t, string(worker), "sk-1", "only the coordinator talks to models")
}

// TestCompose_CallsAreSigned: a coordinator has the private key, a worker the public one, and git
// neither.
func TestCompose_CallsAreSigned(t *testing.T) {
	t.Parallel()
	loaded := project(t)
	ignored, err := os.ReadFile("../.gitignore")
	require.NoError(t, err)
	for service, want := range map[string]struct{ variable, file string }{
		"coordinator": {"TOOLFLEET_SIGN_KEY", "calls.key"}, "worker": {"TOOLFLEET_CALL_KEYS", "calls.pub"},
	} {
		s := loaded.Services[service]
		require.Equal(t, "/run/secrets/"+want.file, *s.Environment[want.variable])
		require.Len(t, s.Secrets, 1)
		require.Equal(t, want.file, s.Secrets[0].Source)
		require.Equal(t, want.file, filepath.Base(loaded.Secrets[want.file].File))
		require.Contains(t, string(ignored), want.file+"\n")
	}
}

// TestCompose_PrometheusFindsEverybody: as many workers as there are have one name.
func TestCompose_PrometheusFindsEverybody(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../prometheus.yml")
	require.NoError(t, err)
	var config struct {
		RuleFiles     []string `yaml:"rule_files"`
		ScrapeConfigs []struct {
			Name string `yaml:"job_name"`
			DNS  []struct {
				Names []string `yaml:"names"`
				Port  int      `yaml:"port"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	require.NoError(t, yaml.Unmarshal(content, &config))
	require.Equal(t, []string{"alerts.yml"}, config.RuleFiles)
	require.Contains(t, strings.Join(stages(t)["prometheus"].instructions, "\n"), "deploy/compose/alerts.yml /etc/prometheus/")
	var scraped []string
	for _, job := range config.ScrapeConfigs {
		require.Contains(t, read(t, "../alerts.yml"), `up{job="`+job.Name+`"}`)
		for _, dns := range job.DNS {
			scraped = append(scraped, dns.Names...)
			require.Equal(t, 9464, dns.Port)
		}
	}
	services := project(t).Services
	var exporting []string
	for name, service := range services {
		if exporter := service.Environment["OTEL_METRICS_EXPORTER"]; exporter != nil && *exporter == "prometheus" {
			exporting = append(exporting, name)
			require.Equal(t, "0.0.0.0", *service.Environment["OTEL_EXPORTER_PROMETHEUS_HOST"])
			require.Contains(t, service.Networks, "fleet")
		}
	}
	require.ElementsMatch(t, exporting, scraped)
	require.Contains(t, services["prometheus"].Networks, "fleet")
}

// TestCompose_GrafanaShowsTheBoard: it asks the services that there are, by the names that the
// board has for them, and a visitor cannot change anything.
func TestCompose_GrafanaShowsTheBoard(t *testing.T) {
	t.Parallel()
	services := project(t).Services
	var sources struct {
		Datasources []struct{ UID, Type, URL string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "../grafana/datasources.yaml")), &sources))
	for _, source := range sources.Datasources {
		at, err := url.Parse(source.URL)
		require.NoError(t, err)
		require.Equal(t, source.Type, at.Hostname(), source.UID)
		require.Contains(t, services[at.Hostname()].Networks, "fleet")
		port := map[string]uint32{"prometheus": 9090, "jaeger": 16686}[source.Type]
		require.Equal(t, strconv.Itoa(int(port)), at.Port())
		require.Equal(t, port, services[at.Hostname()].Ports[0].Target)
	}
	require.Len(t, sources.Datasources, 2)
	require.Contains(t, read(t, "../grafana/toolfleet.json"), `"value": "prometheus"`)
	copied := strings.Join(stages(t)["grafana"].instructions, "\n")
	require.Contains(t, copied, *services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
	require.Contains(t, read(t, "../grafana/boards.yaml"), "path: /etc/grafana/boards ")
	require.Equal(t, "Viewer", *services["grafana"].Environment["GF_AUTH_ANONYMOUS_ORG_ROLE"])
	require.Equal(t, "true", *services["grafana"].Environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"])
	require.Contains(t, services["grafana"].Networks, "fleet")
}

// TestCompose_JaegerGetsTracesOnly: it takes nothing else, and each export would be an error in the
// log.
func TestCompose_JaegerGetsTracesOnly(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coordinator", "worker"} {
		env := project(t).Services[name].Environment
		require.Equal(t, "none", *env["OTEL_LOGS_EXPORTER"], name)
		require.Equal(t, "prometheus", *env["OTEL_METRICS_EXPORTER"], name)
	}
}

// TestCompose_EnvironmentPassesThrough: what is not set stays unset, and is not "".
func TestCompose_EnvironmentPassesThrough(t *testing.T) {
	t.Parallel()
	without := project(t).Services["coordinator"].Environment.Resolve(func(string) (string, bool) { return "", false })
	require.Nil(t, without["OPENAI_API_KEY"])
	with, err := load(t.Context(), environ("OPENAI_API_KEY=sk-1")...)
	require.NoError(t, err)
	require.Equal(t, "sk-1", *with.Services["coordinator"].Environment["OPENAI_API_KEY"])
}

// requirePinned checks that an image has a tag that says a version.
func requirePinned(t *testing.T, image, where string) {
	t.Helper()
	if image == "scratch" {
		return
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, found := strings.Cut(name, ":")
	require.True(t, found, "%s: image %q has no tag", where, image)
	require.NotEqual(t, "latest", tag, "%s: image %q", where, image)
	if tag == "local" {
		return // built here, from a Dockerfile that is checked as well
	}
	_, err := strconv.Atoi(strings.TrimPrefix(tag, "v")[:1])
	require.NoError(t, err, "%s: tag of %q does not start with a version", where, image)
	require.GreaterOrEqual(t, strings.Count(tag, "."), 1, "%s: tag of %q is not a full version", where, image)
}
