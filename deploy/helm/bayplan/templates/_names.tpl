{{- define "bayplan.labels" -}}
app.kubernetes.io/name: bayplan
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan.binder-labels" -}}
app.kubernetes.io/name: bayplan-binder
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan.gpu-admission-labels" -}}
app.kubernetes.io/name: bayplan-gpu-admission
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan.subjects" -}}
- kind: ServiceAccount
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- /* Who leads: the lease is named after the release unless the configuration names it. */}}
{{- define "bayplan.leaderElection" -}}
{{- if not (kindIs "map" .Values.config) }}
{{- fail "config: give the KubeSchedulerConfiguration as keys, not as a text: without the | behind config" }}
{{- end }}
{{- $election := dict "leaderElect" true "resourceName" .Release.Name "resourceNamespace" .Release.Namespace }}
{{- range $key, $value := .Values.config.leaderElection }}
{{- $_ := set $election $key $value }}
{{- end }}
{{- toYaml $election }}
{{- end }}

{{- /* Key by key, for a key that is there twice is refused when the scheduler starts. sprig's merge would take a false
of the user for something left out. */}}
{{- define "bayplan.config" -}}
{{- $election := include "bayplan.leaderElection" . | fromYaml }}
{{- $config := dict "apiVersion" "kubescheduler.config.k8s.io/v1" "kind" "KubeSchedulerConfiguration" }}
{{- range $key, $only := $config }}
{{- $given := get $.Values.config $key | default $only }}
{{- if ne (toString $given) $only }}
{{- fail (printf "config.%s is %v: Bayplan reads %s only" $key $given $only) }}
{{- end }}
{{- end }}
{{- range $key, $value := .Values.config }}
{{- $_ := set $config $key $value }}
{{- end }}
{{- $_ := set $config "leaderElection" $election }}
{{- if .Values.binder.enabled }}
{{- $_ := set $config "profiles" (include "bayplan.requesting" . | fromYamlArray) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* What only Bayplan has, for the scheduler and the binder; nothing where nothing is said. */}}
{{- define "bayplan.settings" -}}
{{- if not (kindIs "map" .Values.settings) }}
{{- fail "settings: give the BayplanConfiguration as keys, not as a text: without the | behind settings" }}
{{- end }}
{{- if .Values.settings }}
{{- $settings := dict "apiVersion" "bayplan.dev/v1alpha1" "kind" "BayplanConfiguration" }}
{{- range $key, $value := .Values.settings }}
{{- $_ := set $settings $key $value }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
{{- end }}

{{- /* Of reservation pods: what the settings say, or what is the default there. */}}
{{- define "bayplan.reservation-namespace" -}}
{{- (.Values.settings.resourceReservation | default dict).namespace | default "kai-resource-reservation" }}
{{- end }}

{{- define "bayplan.reservation-account" -}}
{{- (.Values.settings.resourceReservation | default dict).serviceAccountName | default "kai-resource-reservation" }}
{{- end }}

{{- /* Beside a binder the scheduler may not bind: each profile makes requests, as it says itself or as is added here. */}}
{{- define "bayplan.requesting" -}}
{{- $enabled := list (dict "name" "BindRequestBinder") }}
{{- if .Values.binder.gpuSharing }}
{{- $enabled = prepend $enabled (dict "name" "GpuSharing") }}
{{- end }}
{{- $plugins := dict "multiPoint" (dict "enabled" $enabled "disabled" (list (dict "name" "DefaultBinder"))) }}
{{- $profiles := list }}
{{- range .Values.config.profiles | default (list (dict "schedulerName" .Release.Name)) }}
{{- $profile := deepCopy . }}
{{- if not .plugins }}
{{- $_ := set $profile "plugins" $plugins }}
{{- else if not (contains "BindRequestBinder" (toYaml .plugins)) }}
{{- fail (printf "config.profiles: %s has plugins of its own: with binder.enabled it must enable BindRequestBinder at multiPoint and disable DefaultBinder there" .schedulerName) }}
{{- end }}
{{- $profiles = append $profiles $profile }}
{{- end }}
{{- toYaml $profiles }}
{{- end }}

{{- /* The schedulers whose pods may share GPUs: those of profiles that give parts of them out. */}}
{{- define "bayplan.sharing" -}}
{{- $names := list }}
{{- range include "bayplan.requesting" . | fromYamlArray }}
{{- if contains "GpuSharing" (toYaml .plugins) }}
{{- $names = append $names (.schedulerName | default "default-scheduler") }}
{{- end }}
{{- end }}
{{- if not $names }}
{{- fail "binder.gpuSharing: every profile of config.profiles has plugins of its own, and none of them enables GpuSharing" }}
{{- end }}
{{- toYaml $names }}
{{- end }}
