# docker build -t dsokr .
# docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#   -p 8000:8000 -v ./model:/model:ro dsokr serve /model --host 0.0.0.0
FROM python:3.11-slim AS build
# An index of PyTorch builds without CUDA makes the image smaller: --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/dsokr \
  && /opt/dsokr/bin/pip install --no-cache-dir -c constraints.txt ".[chem,text,search,serve,tables]" \
  && /opt/dsokr/bin/pip uninstall --yes pip

FROM python:3.11-slim
COPY --from=build /opt/dsokr /opt/dsokr
ENV PATH=/opt/dsokr/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/tmp NUMBA_CACHE_DIR=/tmp MPLCONFIGDIR=/tmp
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# With TLS or another port, give `docker run` a --health-cmd of your own.
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready')"]
ENTRYPOINT ["dsokr"]
CMD ["--help"]
