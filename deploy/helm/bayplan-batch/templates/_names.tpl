{{- define "bayplan-batch.labels" -}}
app.kubernetes.io/name: bayplan-batch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan-batch.subjects" -}}
- kind: ServiceAccount
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
{{- end }}

{{- define "bayplan-batch.controllers-labels" -}}
app.kubernetes.io/name: bayplan-batch-controllers
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bayplan-batch.admission-labels" -}}
app.kubernetes.io/name: bayplan-batch-admission
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
