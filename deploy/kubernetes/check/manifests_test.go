package check

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// scaledObject is what the manifest uses of KEDA's.
type scaledObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   any    `json:"metadata"`
	Spec       struct {
		ScaleTargetRef  struct{ Name string }
		MinReplicaCount int
		MaxReplicaCount int
		CooldownPeriod  int
		Triggers        []struct {
			Type     string
			Metadata map[string]string
		}
	}
}

// kinds are the objects that there may be.
func kinds() map[string]any {
	return map[string]any{
		"v1/Namespace": &corev1.Namespace{}, "v1/Secret": &corev1.Secret{}, "apps/v1/Deployment": &appsv1.Deployment{},
		"policy/v1/PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "networking.k8s.io/v1/NetworkPolicy": &networkingv1.NetworkPolicy{},
		"keda.sh/v1alpha1/ScaledObject": &scaledObject{},
	}
}

// objects builds the kustomization as `kubectl apply -k` does, and reads each object as its API has
// it, where an unknown field or a value of another type is an error.
func objects(t *testing.T, components ...string) map[string]any {
	t.Helper()
	dir := ".."
	if len(components) > 0 {
		dir = withComponents(t, components)
	}
	return objectsIn(t, dir)
}

// objectsIn are those of a directory.
func objectsIn(t *testing.T, dir string) map[string]any {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	require.NoError(t, err)
	all := map[string]any{}
	for _, r := range built.Resources() {
		content, err := r.AsYAML()
		require.NoError(t, err)
		if r.GetKind() != "Namespace" {
			require.Equal(t, "toolfleet", r.GetNamespace(), "%s %s", r.GetKind(), r.GetName())
		}
		all[r.GetKind()+"/"+r.GetName()] = decode(t, content)
	}
	return all
}

// withComponents is a kustomization of the fleet and some of its components.
func withComponents(t *testing.T, components []string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	here, err := filepath.Abs("..")
	require.NoError(t, err)
	fleet, err := filepath.Rel(dir, here)
	require.NoError(t, err)
	text := "resources: [" + fleet + "]\ncomponents:\n"
	for _, name := range components {
		text += "  - " + filepath.Join(fleet, name) + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}

func decode(t *testing.T, content []byte) any {
	t.Helper()
	var head struct {
		APIVersion, Kind string
	}
	require.NoError(t, yaml.Unmarshal(content, &head))
	object := kinds()[head.APIVersion+"/"+head.Kind]
	require.NotNil(t, object, "%s of %s", head.Kind, head.APIVersion)
	require.NoError(t, yaml.UnmarshalStrict(content, object), "%s", content)
	return object
}

func TestManifests_AreWhatAFleetNeeds(t *testing.T) {
	t.Parallel()
	all := objects(t)
	require.Len(t, all, 9)
	for _, name := range []string{
		"Namespace/toolfleet", "Deployment/coordinator", "Deployment/worker", "PodDisruptionBudget/coordinator", "PodDisruptionBudget/worker",
		"ScaledObject/worker", "NetworkPolicy/coordinator", "NetworkPolicy/worker", "NetworkPolicy/nats",
	} {
		require.Contains(t, all, name)
	}
}

// TestManifests_WorkersIsolate: with what compose's proof gives a container, in users of the
// pod's own.
func TestManifests_WorkersIsolate(t *testing.T) {
	t.Parallel()
	pod := deployment(t, "worker").Spec.Template.Spec
	require.False(t, *pod.HostUsers)
	require.Equal(t, "toolfleet.json", *pod.SecurityContext.SeccompProfile.LocalhostProfile)
	require.Equal(t, corev1.SeccompProfileTypeLocalhost, pod.SecurityContext.SeccompProfile.Type)
	require.Equal(t, corev1.AppArmorProfileTypeUnconfined, pod.SecurityContext.AppArmorProfile.Type)
	container := pod.Containers[0]
	require.Equal(t, corev1.UnmaskedProcMount, *container.SecurityContext.ProcMount)
	require.Equal(t, "full", environment(container)["TOOLFLEET_MIN_LEVEL"].Value)
	require.NotContains(t, environment(container), "TOOLFLEET_SANDBOX")
	require.Nil(t, deployment(t, "worker").Spec.Replicas, "KEDA says how many")
	require.Equal(t, "full", environment(deployment(t, "coordinator").Spec.Template.Spec.Containers[0])["TOOLFLEET_MIN_LEVEL"].Value)
}

func TestManifests_PodsAreConfined(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coordinator", "worker"} {
		pod := deployment(t, name).Spec.Template.Spec
		require.True(t, *pod.SecurityContext.RunAsNonRoot, name)
		require.Equal(t, int64(10001), *pod.SecurityContext.RunAsUser, "the images' user")
		require.False(t, *pod.AutomountServiceAccountToken, name)
		require.GreaterOrEqual(t, *pod.TerminationGracePeriodSeconds, int64(60), "SIGTERM drains")
		require.Len(t, pod.Containers, 1)
		security := pod.Containers[0].SecurityContext
		require.Equal(t, []corev1.Capability{"ALL"}, security.Capabilities.Drop, name)
		require.True(t, *security.ReadOnlyRootFilesystem, name)
		require.False(t, *security.AllowPrivilegeEscalation, name)
		require.Nil(t, security.Privileged, name)
		for _, volume := range pod.Volumes {
			require.True(t, volume.EmptyDir != nil || volume.Secret != nil, "%s: volume %s", name, volume.Name)
		}
		require.NotContains(t, pod.Containers[0].Image, "latest")
		require.Regexp(t, `^registry\.example/toolfleet/`+name+`:v`, pod.Containers[0].Image)
	}
}

// TestManifests_SelectorsFindTheirPods: a budget or a policy that selects nothing does nothing.
func TestManifests_SelectorsFindTheirPods(t *testing.T) {
	t.Parallel()
	all := objects(t)
	for _, name := range []string{"coordinator", "worker"} {
		d := deployment(t, name)
		labels := d.Spec.Template.Labels
		require.Subset(t, labels, d.Spec.Selector.MatchLabels)
		require.Subset(t, labels, all["PodDisruptionBudget/"+name].(*policyv1.PodDisruptionBudget).Spec.Selector.MatchLabels)
		policy := all["NetworkPolicy/"+name].(*networkingv1.NetworkPolicy).Spec
		require.Subset(t, labels, policy.PodSelector.MatchLabels)
		require.Empty(t, policy.Ingress)
		require.Len(t, policy.PolicyTypes, 2)
	}
	for _, rule := range all["NetworkPolicy/worker"].(*networkingv1.NetworkPolicy).Spec.Egress {
		for _, to := range rule.To {
			require.Nil(t, to.IPBlock, "workers reach NATS and names only")
		}
	}
	scaled := all["ScaledObject/worker"].(*scaledObject)
	require.Equal(t, "worker", scaled.Spec.ScaleTargetRef.Name)
	require.Equal(t, map[string]string{
		"natsServerMonitoringEndpoint": "nats-headless.toolfleet.svc.cluster.local:8222", "account": "DEFAULT",
		"stream": "TF_CALLS", "consumer": "ready_default", "lagThreshold": "4",
	}, scaled.Spec.Triggers[0].Metadata)
	accounts, err := os.ReadFile("../../nats/accounts.conf")
	require.NoError(t, err)
	require.Contains(t, string(accounts), "\n  DEFAULT {\n")
	require.Contains(t, string(accounts), "TF_CALLS.ready_default")
}

// TestComponents_S3: each pod has a place, keys of its own, and a way there.
func TestComponents_S3(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"coordinator", "worker"} {
		env := environment(deployment(t, name, "s3").Spec.Template.Spec.Containers[0])
		require.Regexp(t, "^s3://", env["TOOLFLEET_BODIES"].Value)
		require.NotEqual(t, env["AWS_ACCESS_KEY_ID"].ValueFrom.SecretKeyRef.Key, env["AWS_SECRET_ACCESS_KEY"].ValueFrom.SecretKeyRef.Key)
		reached := false
		for _, rule := range objects(t, "s3")["NetworkPolicy/"+name].(*networkingv1.NetworkPolicy).Spec.Egress {
			reached = reached || rule.To[0].IPBlock != nil && rule.Ports[0].Port.IntValue() == 443
		}
		require.True(t, reached, name)
	}
}

// TestSecrets_HaveTheKeysThatPodsAskFor, and each pod asks for its own alone.
func TestSecrets_HaveTheKeysThatPodsAskFor(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../secrets.example.yaml")
	require.NoError(t, err)
	secrets := map[string]*corev1.Secret{}
	for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
		secret, ok := decode(t, document).(*corev1.Secret)
		require.True(t, ok)
		require.Equal(t, "toolfleet", secret.Namespace)
		secrets[secret.Name] = secret
	}
	require.Len(t, secrets, 3)
	for _, name := range []string{"coordinator", "worker"} {
		for _, variable := range deployment(t, name, "s3").Spec.Template.Spec.Containers[0].Env {
			if variable.ValueFrom == nil {
				continue
			}
			from := variable.ValueFrom.SecretKeyRef
			require.Equal(t, "toolfleet-"+name, from.Name, "a pod has no key but its own")
			require.Contains(t, secrets[from.Name].StringData, from.Key)
		}
	}
	for name, key := range map[string]string{"coordinator": "calls.key", "worker": "calls.pub"} {
		pod := deployment(t, name).Spec.Template.Spec
		mount := volumeOf(t, pod, "keys")
		require.Equal(t, "toolfleet-"+name, mount.SecretName, "a pod has no key but its own")
		require.Equal(t, []corev1.KeyToPath{{Key: key, Path: key}}, mount.Items)
		require.Contains(t, secrets[mount.SecretName].StringData, key)
		env := environment(pod.Containers[0])
		require.Equal(t, "/etc/toolfleet/"+key, env["TOOLFLEET_SIGN_KEY"].Value+env["TOOLFLEET_CALL_KEYS"].Value)
		require.Contains(t, pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "keys", MountPath: "/etc/toolfleet", ReadOnly: true})
	}
	server := secrets["toolfleet-nats"].StringData
	require.Equal(t, "default=nats://fleet_default:"+server["fleet"]+"@nats:4222", secrets["toolfleet-coordinator"].StringData["pool-nats"])
	for name, user := range map[string]string{"coordinator": "fleet", "worker": "worker"} {
		require.Equal(t, "nats://"+user+":"+server[user]+"@nats:4222", secrets["toolfleet-"+name].StringData["nats"])
	}
}

func deployment(t *testing.T, name string, components ...string) *appsv1.Deployment {
	t.Helper()
	return deploymentIn(t, objects(t, components...), name)
}

func deploymentIn(t *testing.T, all map[string]any, name string) *appsv1.Deployment {
	t.Helper()
	d, ok := all["Deployment/"+name].(*appsv1.Deployment)
	require.True(t, ok, name)
	return d
}

func volumeOf(t *testing.T, pod corev1.PodSpec, name string) *corev1.SecretVolumeSource {
	t.Helper()
	for _, volume := range pod.Volumes {
		if volume.Name == name {
			require.NotNil(t, volume.Secret)
			return volume.Secret
		}
	}
	require.Fail(t, "there is no volume "+name)
	return nil
}

func environment(c corev1.Container) map[string]corev1.EnvVar {
	all := map[string]corev1.EnvVar{}
	for _, v := range c.Env {
		all[v.Name] = v
	}
	return all
}
