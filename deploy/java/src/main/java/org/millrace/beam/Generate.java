package org.millrace.beam;

import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.beam.sdk.extensions.python.PythonExternalTransform;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.transforms.PTransform;
import org.apache.beam.sdk.values.PCollection;
import org.apache.beam.sdk.values.Row;

/**
 * Rows with a field of prompts get a field {@code completion}: a row of {@code text}, {@code finish_reason}, {@code
 * stop_reason}, {@code choices}, {@code completion_tokens}, {@code model}, {@code prompt_tokens} and {@code
 * cached_tokens}. A row that fails fails the job.
 *
 * <p>Needs an expansion service: {@code millrace expansion --port 8097}.
 */
public final class Generate extends PTransform<PCollection<Row>, PCollection<Row>> {

  private static final String IN_PYTHON = "millrace.transforms.beam_rows.row_transforms.GenerateRows";

  private final String expansionService;
  private final Map<String, Object> settings = new LinkedHashMap<>();
  private final Map<String, Object> sampling = new LinkedHashMap<>();
  private final Map<String, Object> engine = new LinkedHashMap<>();

  private Generate(String model, String expansionService) {
    this.expansionService = expansionService;
    settings.put("model", model);
  }

  /** Completions by that model; {@code expansionService} is its host:port. */
  public static Generate of(String model, String expansionService) {
    return new Generate(model, expansionService);
  }

  /** The field of the prompts, {@code prompt} by default. */
  public Generate withPromptField(String name) {
    return with("prompt_field", name);
  }

  /** A setting by its name in docs/how-to/yaml-and-java.md. */
  public Generate with(String name, Object value) {
    settings.put(name, value);
    return this;
  }

  /** A sampling parameter of all rows, by its name in docs/reference/sampling.md. */
  public Generate withSampling(String name, Object value) {
    sampling.put(name, value);
    return this;
  }

  /** A setting of the engine, by the name of millrace's flag. */
  public Generate withEngine(String name, Object value) {
    engine.put(name, value);
    return this;
  }

  @Override
  public PCollection<Row> expand(PCollection<Row> rows) {
    PythonExternalTransform<PCollection<Row>, PCollection<Row>> generate =
        PythonExternalTransform.from(IN_PYTHON, expansionService);
    for (Map.Entry<String, Object> setting : settings.entrySet()) {
      generate = generate.withKwarg(setting.getKey(), setting.getValue());
    }
    if (!sampling.isEmpty()) {
      generate = generate.withKwarg("sampling", rowOf(sampling));
    }
    if (!engine.isEmpty()) {
      generate = generate.withKwarg("engine", rowOf(engine));
    }
    return rows.apply(generate);
  }

  private static Row rowOf(Map<String, Object> values) {
    Schema.Builder schema = Schema.builder();
    values.forEach((name, value) -> schema.addField(name, typeOf(name, value)));
    return Row.withSchema(schema.build()).addValues(values.values().toArray()).build();
  }

  private static Schema.FieldType typeOf(String name, Object value) {
    if (value instanceof Long) {
      return Schema.FieldType.INT64;
    } else if (value instanceof Integer) {
      return Schema.FieldType.INT32;
    } else if (value instanceof Double) {
      return Schema.FieldType.DOUBLE;
    } else if (value instanceof Boolean) {
      return Schema.FieldType.BOOLEAN;
    } else if (value instanceof String) {
      return Schema.FieldType.STRING;
    } else if (value instanceof Iterable) {
      return Schema.FieldType.array(typeOf(name, ((Iterable<?>) value).iterator().next()));
    }
    throw new IllegalArgumentException(
        name + ": takes a number, a boolean, a string or a list of them, not "
            + (value == null ? "null" : value.getClass()));
  }
}
